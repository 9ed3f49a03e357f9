package cli

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Keys that are more than a character, as terminals send them.
var (
	controlKeys = map[byte]string{'\r': "enter", '\n': "enter", 0x1b: "esc", 0x7f: "backspace", '\b': "backspace", 3: "ctrl+c", 21: "ctrl+u", 26: "ctrl+z"}
	cursorKeys  = map[string]string{
		"A": "up", "B": "down", "H": "home", "F": "end", "1~": "home", "7~": "home", "4~": "end", "8~": "end", "5~": "pgup", "6~": "pgdown",
	}
)

// readKeys sends each key that is read, until the end of the terminal. It blocks until the process ends, because a terminal's read cannot
// be interrupted.
func readKeys(terminal io.Reader, keys chan<- string) {
	buffer := make([]byte, 256)
	for {
		n, err := terminal.Read(buffer)
		for _, key := range keysOf(buffer[:n]) {
			keys <- key
		}
		if err != nil {
			return
		}
	}
}

// keysOf names the keys in what a terminal has sent at once. An escape alone is the key Esc: a terminal sends the bytes of a sequence together.
func keysOf(sent []byte) (keys []string) {
	for len(sent) > 0 {
		if len(sent) > 2 && sent[0] == 0x1b && (sent[1] == '[' || sent[1] == 'O') {
			end := 2
			for end < len(sent)-1 && (sent[end] < '@' || sent[end] > '~') {
				end++
			}
			if name := cursorKeys[string(sent[2:end+1])]; name != "" {
				keys = append(keys, name)
			}
			sent = sent[end+1:]
			continue
		}
		if name := controlKeys[sent[0]]; name != "" {
			keys, sent = append(keys, name), sent[1:]
			continue
		}
		r, size := utf8.DecodeRune(sent)
		if r >= ' ' && r != utf8.RuneError {
			keys = append(keys, strings.Clone(string(sent[:size])))
		}
		sent = sent[size:]
	}
	return keys
}
