package wire

import (
	"bytes"
	"net"
	"strings"
)

// OddLines tells whether a line of the head goes on in the next or ends in LF alone. Others may read it
// otherwise. If the head's end is odd, fasthttp reads no header in order, so no check would see one.
func OddLines(head []byte) bool {
	for {
		end := bytes.IndexByte(head, '\n')
		if end < 0 {
			return false
		}
		if end == 0 || head[end-1] != '\r' {
			return true
		}
		head = head[end+1:]
		if len(head) > 0 && (head[0] == ' ' || head[0] == '\t') {
			return true
		}
	}
}

// JoinList is what a header says that is a list, and may be given more than once.
func JoinList(before, value []byte) []byte {
	if before == nil {
		return value
	}
	return bytes.Join([][]byte{before, value}, []byte{','})
}

// HasToken looks for a word in a comma-separated list, whatever its case.
func HasToken(list []byte, token string) bool {
	for len(list) > 0 {
		var item []byte
		item, list, _ = bytes.Cut(list, []byte{','})
		if strings.EqualFold(string(bytes.TrimSpace(item)), token) {
			return true
		}
	}
	return false
}

const traceparentLength = 2 + 1 + 32 + 1 + 16 + 1 + 2

// Traceparent is the part of a traceparent that this version knows, empty if it is not valid.
func Traceparent(v []byte) string {
	if !validTraceparent(v) {
		return ""
	}
	return string(v[:traceparentLength])
}

// validTraceparent checks version-traceid-parentid-flags. A later version may have more.
func validTraceparent(v []byte) bool {
	const length = traceparentLength
	if len(v) < length || len(v) > length && (string(v[:2]) == "00" || v[length] != '-') {
		return false
	}
	if v[2] != '-' || v[35] != '-' || v[52] != '-' || string(v[:2]) == "ff" {
		return false
	}
	return lowerHex(v[:2]) && lowerHex(v[53:55]) &&
		lowerHex(v[3:35]) && len(bytes.Trim(v[3:35], "0")) > 0 &&
		lowerHex(v[36:52]) && len(bytes.Trim(v[36:52], "0")) > 0
}

func lowerHex(b []byte) bool { return len(bytes.Trim(b, "0123456789abcdef")) == 0 }

// IsLoopback tells whether a host's name or address is this machine's own.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
