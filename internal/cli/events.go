package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

const eventsLong = `Print what happens to a lock, one line an event, from all pods, as it happens:

  state     how the lock is now. It comes first, and again after an interruption
  acquired  the lock was granted, also by a hand-over to the next in the queue
  released  the holder has released it, with its outcome and result, if it gave them
  expired   the holder's lease has ended without a release
  stopping  the holder was asked to stop, with the reason

Each line begins with the time at which the event came here. The events are those that happen
while the command runs. Some may be missing, because nothing keeps them: to decide something,
acquire the lock ("run", "acquire").

If the sidecar restarts, or its store is away, the command says so on standard error, tries
every second, and goes on with the state. Events of the time between are missing.

The command ends with Ctrl-C, or as --until and --count say. The exit code is then 0. It is 69
if the sidecar cannot be reached at the start.`

const eventsExample = `  locksidecar events backup:nightly

  # Wait until the lock was given up, for ten minutes at most
  timeout 10m locksidecar events backup:nightly --until released,expired

  # Who gets the lock, one pod a line
  locksidecar events leader:billing -o json | jq -r 'select(.event == "acquired") | .data.holder.pod'`

// eventsPause is the pause between the tries while the sidecar does not answer.
const eventsPause = time.Second

// eventNames are the events after the state.
var eventNames = []string{"acquired", "released", "expired", "stopping"}

// follower prints the events of a key.
type follower struct {
	client      *client.Client
	key         string
	until       []string
	count       int
	out, errOut io.Writer
	asJSON      bool

	reached bool // the sidecar has answered once
	away    bool // it was told that no events come
}

func (a *app) eventsCommand() *cobra.Command {
	f := &follower{}
	cmd := &cobra.Command{
		Use:     "events KEY",
		Short:   "Print what happens to a lock, as it happens",
		Long:    eventsLong,
		Example: eventsExample,
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.count < 0 {
				return usagef("--count is %d; allowed: 0 or more", f.count)
			}
			for _, name := range f.until {
				if !slices.Contains(eventNames, name) {
					return usagef("--until is %q; allowed: %s, or several with commas", name, strings.Join(eventNames, ", "))
				}
			}
			f.client, f.key, f.asJSON = a.newClient(), args[0], wantsJSON(cmd)
			f.out, f.errOut = cmd.OutOrStdout(), cmd.ErrOrStderr()
			ctx, release := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer release()
			return f.run(ctx)
		},
	}
	addOutput(cmd, "one JSON document a line: at (the time), event (its name) and data, as the API sends it")
	cmd.Flags().StringSliceVar(&f.until, "until", nil, "end after the first event with this `name`, or one of several names with commas. The state does not count")
	cmd.Flags().IntVar(&f.count, "count", 0, "end after so many events, not counting the state; 0: no end")
	return cmd
}

// errSeen ends a stream: what was awaited has happened.
var errSeen = errors.New("seen")

// run follows the key until ctx ends. After the first answer, it tries again when the sidecar or its store is away.
func (f *follower) run(ctx context.Context) error {
	for {
		err := f.client.Follow(ctx, f.key, f.show)
		switch {
		case ctx.Err() != nil, errors.Is(err, errSeen):
			return nil //nolint:nilerr // this is the end that was asked for
		case !f.reached || exitcode.Of(err) != exitcode.Unavailable:
			return err
		}
		if !f.away {
			f.away = true
			tellAway(f.errOut, err)
		}
		select {
		case <-time.After(eventsPause):
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *follower) show(name string, data []byte) error {
	f.reached, f.away = true, false
	line, err := f.line(time.Now(), name, data)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(f.out, line+"\n"); err != nil {
		return err
	}
	if name == "state" {
		return nil
	}
	if f.count--; f.count == 0 || slices.Contains(f.until, name) {
		return errSeen
	}
	return nil
}

func (f *follower) line(at time.Time, name string, data []byte) (string, error) {
	if f.asJSON {
		var line strings.Builder
		err := writeJSON(&line, struct {
			At    time.Time       `json:"at"`
			Event string          `json:"event"`
			Data  json.RawMessage `json:"data"`
		}{at.UTC().Truncate(time.Microsecond), name, data})
		return strings.TrimSuffix(line.String(), "\n"), err
	}
	text, err := textOf(name, data)
	return fmt.Sprintf("%s  %-8s  %s", at.Format("2006-01-02 15:04:05.000"), client.Printable(name), text), err
}

// textOf is the data of an event for people.
func textOf(name string, data []byte) (string, error) {
	if name == "state" {
		var l client.Lock
		err := decode(data, &l)
		return stateOf(&l), err
	}
	var e client.Event
	err := decode(data, &e)
	return eventText(&e), err
}

// stateOf is the state of a lock in one line.
func stateOf(l *client.Lock) string {
	text := client.Printable(l.State)
	if l.Holder != nil {
		text = l.Holder.String()
		if l.Mode == client.ModeShared {
			text = l.LockMode.String() + "; the oldest: " + text
		}
	}
	if l.QueueLength > 0 {
		text += fmt.Sprintf("; waiting: %d", l.QueueLength)
	}
	if l.Stopping != nil {
		text += "; asked to stop: " + l.Stopping.String()
	}
	return text
}

func eventText(e *client.Event) string {
	parts := []string{fmt.Sprintf("token %d", e.Token)}
	if e.Mode == client.ModeShared {
		parts = append(parts, e.Mode)
	}
	if e.Slot != nil {
		parts = append(parts, fmt.Sprintf("slot %d", *e.Slot))
	}
	if e.Holder != nil {
		parts = append(parts, "by "+client.Printable(e.Holder.Name()))
	}
	if said := e.Said(); said != "" {
		parts = append(parts, said)
	}
	return strings.Join(parts, ", ")
}
