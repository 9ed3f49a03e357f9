package history

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

// TestWhatIsWrittenIsRead: both ends of a record give the same history, and of a
// process that was killed in the middle of a call the call is known.
func TestWhatIsWrittenIsRead(t *testing.T) {
	var file bytes.Buffer
	r := NewRecorder("app", &file)
	one := r.Begin(Op{Kind: Acquire, Key: "a", Wait: -1})
	two := r.Begin(Op{Kind: Acquire, Key: "b"})
	one.Outcome, one.Token, one.Until = Granted, 7, Now()
	r.End(one)
	r.Add(Op{Kind: Line, Key: "a", Line: []Place{{Number: 1, ID: two.ID}}})

	want, err := r.Ops()
	if err != nil {
		t.Fatal(err)
	}
	file.WriteString(`{"id":"app-9","kind":"rel`) // killed in the middle of a line
	got, err := Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) || len(got) != 3 {
		t.Errorf("read %+v\nwant %+v", got, want)
	}
	if got[0].Outcome != Granted || got[0].Return < got[0].Call || got[1].Outcome != Unknown || got[1].Return != 0 {
		t.Errorf("read %+v", got)
	}

	var copied bytes.Buffer
	if err := WriteAll(&copied, want); err != nil {
		t.Fatal(err)
	}
	if again, err := Read(&copied); err != nil || !reflect.DeepEqual(again, want) {
		t.Errorf("a copy reads %+v, %v", again, err)
	}
}

func TestABrokenLineIsAnError(t *testing.T) {
	if _, err := Read(strings.NewReader("{\"id\":\n{\"id\":\"app-1\"}\n")); err == nil {
		t.Error("a line in the middle that cannot be read was passed over")
	}
}
