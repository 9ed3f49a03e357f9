// Package wire defines the format of the HTTP API: it parses requests into those of package lease, and
// encodes answers, events and problems. It has no sockets, sessions or state, so all of it can be fuzzed.
//
// # Strict parsing
//
// Paths are used as sent, without normalisation, so "%2F" and ".." are parts of keys. A "+" is a plus in a path,
// and a space in a query (form encoding). Bytes from 0x80 on may be unescaped if they form UTF-8. A parameter or
// field that is unknown, repeated, of the wrong type or out of range is refused by name, and so are forbidden
// combinations. 1.0 and 1e3 are not integers. A null is a wrong type, except for data, result and reason, where it
// means none. Half a surrogate pair is refused, because after decoding, different ones would be equal.
package wire
