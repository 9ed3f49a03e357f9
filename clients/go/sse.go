package locksidecar

import (
	"bufio"
	"errors"
	"io"
	"strings"
)

// maxLine limits a line of a stream. The longest one is a state with a hundred holders, each with its data.
const maxLine = 4 << 20

// eventReader reads server-sent events. Unknown fields and comments of later versions are ignored.
type eventReader struct{ lines *bufio.Reader }

func newEventReader(r io.Reader) *eventReader { return &eventReader{bufio.NewReader(r)} }

// next returns the next event with a name.
func (r *eventReader) next() (name string, data []byte, err error) {
	for {
		line, err := r.line()
		if err != nil {
			return "", nil, err
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case field == "event":
			name = value
		case field == "data":
			data = []byte(value)
		case line == "" && name != "":
			return name, data, nil
		}
	}
}

// line returns a line without its end.
func (r *eventReader) line() (string, error) {
	var line []byte
	for {
		part, err := r.lines.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return "", errors.New("a line of the stream is too long")
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return "", err
		default:
			return strings.TrimRight(string(line), "\r\n"), nil
		}
	}
}
