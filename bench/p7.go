package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// p7 measures how long it takes from kill -9 of an app, which holds a lock, until
// a waiter behind another sidecar has it.
func (b *bench) p7() ([]result, error) {
	const goal = 10.0 // milliseconds
	p, err := b.pods("p7")
	if err != nil {
		return nil, err
	}
	defer p.stop()
	var times []float64
	round := func() error {
		app, err := startApp(p.a.socket, handOffKey)
		if err != nil {
			return err
		}
		defer app.end()
		ms, err := p.handOff(app.cmd.Process.Kill)
		times = append(times, ms)
		return err
	}
	if err := round(); err != nil { // statements are prepared in it
		return nil, err
	}
	times = nil
	n, err := b.repeat(20*b.rounds, round)
	if err != nil {
		return nil, err
	}
	b.log.Printf("P7 %d apps killed: median %.2f ms, p99 %.2f ms", n, median(times), p99(times))
	return []result{{
		id: "P7", what: "`kill -9` of the app until a waiter behind another sidecar has its lock, p99",
		figure: fmt.Sprintf("%.2f ms (of %d; median %.2f ms)", p99(times), n, median(times)), peer: "–", ratio: "–",
		goal: fmt.Sprintf("at most %.0f ms", goal), reached: p99(times) <= goal,
	}}, nil
}

// app is a process that holds a lock.
type app struct {
	cmd *exec.Cmd
}

// startApp returns when the process holds the lock.
func startApp(socket, key string) (*app, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	a := &app{cmd: exec.Command(self, "hold", socket, key)}
	a.cmd.Stderr = os.Stderr
	if _, err := a.cmd.StdinPipe(); err != nil { // its end tells the app that the bench has ended
		return nil, err
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it says one thing only
		a.end()
		return nil, fmt.Errorf("the app that was to hold %s ended: %w", key, err)
	}
	return a, nil
}

func (a *app) end() {
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
}

// holdLock is the app of P7: it holds a lock until it is killed.
func holdLock(socket, key string) {
	err := func() error {
		c, err := dial(socket)
		if err != nil {
			return err
		}
		defer c.close()
		if _, err := c.acquire(key, nil); err != nil {
			return err
		}
		fmt.Println("holding")
		_, err = io.Copy(io.Discard, os.Stdin)
		return errors.Join(errors.New("the bench has ended"), err)
	}()
	fmt.Fprintln(os.Stderr, "bench hold:", err)
	os.Exit(1)
}
