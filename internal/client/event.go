package client

import (
	"bufio"
	"strings"
)

// NextEvent reads one server-sent event. The caller ignores unknown events of later versions.
func NextEvent(lines *bufio.Reader) (name string, data []byte, err error) {
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return "", nil, err
		}
		field, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case field == "event":
			name = value
		case field == "data":
			data = []byte(value)
		case field == "" && value == "" && name != "":
			return name, data, nil
		}
	}
}
