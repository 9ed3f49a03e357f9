package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// document is one of a stream: head, body and tail together are its bytes.
type document struct {
	file         string
	number, line int // of its body, both from 1

	// head is before the first value: directives, "---", comments. tail ends the document.
	head, body, tail string
	isJSON           bool
	first            bool // of its file
	marked           bool // by "---"
}

// split cuts a file into documents, which together are the file, byte for byte. YAML's mark of a
// document begins a line, and no text and no comment may begin a line with it.
func split(file File) []document {
	var found []document
	number, line := 1, 1 // of the next body
	for _, d := range splitYAML(string(file.Content)) {
		for _, d := range splitJSON(d) {
			line += strings.Count(d.head, "\n")
			d.file, d.number, d.line = file.Name, number, line
			d.first = len(found) == 0
			line += strings.Count(d.body+d.tail, "\n")
			if strings.TrimSpace(d.body) != "" {
				number++
			}
			found = append(found, d)
		}
	}
	return found
}

func splitYAML(text string) []document {
	var found []document
	var d document
	begin, body, at := 0, -1, 0 // where the document, its body and the line begin; -1: not yet
	next := func(tail, end int) {
		if body < 0 {
			body = tail
		}
		if begin < end {
			d.head, d.body, d.tail = text[begin:body], text[body:tail], text[tail:end]
			found = append(found, d)
		}
		d, begin, body = document{}, end, -1
	}
	for line := range strings.Lines(text) {
		end := at + len(line)
		switch {
		case isMark(line, "---"):
			if d.marked || body >= 0 {
				next(at, at)
			}
			d.marked = true
			if rest := strings.TrimLeft(line[len("---"):], " \t"); !isComment(rest) {
				body = end - len(rest)
			}
		case isMark(line, "..."):
			next(at, end)
		case body < 0 && !isComment(line) && (d.marked || !strings.HasPrefix(line, "%")):
			body = at
		}
		at = end
	}
	next(at, at)
	return found
}

// isMark says whether the line is the mark, alone or with something behind it.
func isMark(line, mark string) bool {
	rest, ok := strings.CutPrefix(line, mark)
	return ok && (rest == "" || strings.ContainsAny(rest[:1], " \t\r\n"))
}

// isComment is true for an empty line, too.
func isComment(line string) bool {
	line = strings.TrimSpace(line)
	return line == "" || line[0] == '#'
}

// splitJSON cuts JSON into its values, which may follow each other without any mark.
func splitJSON(d document) []document {
	if !strings.HasPrefix(strings.TrimLeft(d.body, " \t\r\n"), "{") {
		return []document{d}
	}
	var found []document
	decoder := json.NewDecoder(strings.NewReader(d.body))
	from := 0
	for {
		var value json.RawMessage
		err := decoder.Decode(&value)
		if errors.Is(err, io.EOF) && len(found) > 0 {
			break
		}
		if err != nil {
			return []document{d} // YAML in braces
		}
		to := int(decoder.InputOffset())
		begin := to - len(bytes.TrimSpace(value))
		found = append(found, document{head: d.body[from:begin], body: d.body[begin:to], isJSON: true})
		from = to
	}
	found[0].head, found[0].marked = d.head+found[0].head, d.marked
	found[len(found)-1].tail = d.body[from:] + d.tail
	return found
}
