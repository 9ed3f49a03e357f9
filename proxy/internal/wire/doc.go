// Package wire is the form of the HTTP API: it parses requests into those of package lease, and encodes
// answers, events and problems. It has no sockets, sessions or state, so all of it can be fuzzed.
//
// # Strict parsing
//
// Paths are taken raw: nothing is normalised, "%2F" and ".." are parts of keys. A "+" is a plus in a
// path, and a space in a query (form encoding). Bytes from 0x80 on may stand unescaped if they form
// UTF-8. A parameter or field that is unknown, repeated, of the wrong type or out of range is refused
// by name; so are those that do not go together. Integers are neither 1.0 nor 1e3. A null is a wrong
// type, except for data, result and reason, where it means none. Half a surrogate pair is no text:
// after decoding, different ones would be equal.
package wire
