package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// folder is where the patches and the table are.
const folder = "test/mutants"

func main() {
	only := flag.String("only", "", "the mutants to be tried, with commas between; empty: all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, strings.FieldsFunc(*only, func(r rune) bool { return r == ',' })); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1) //nolint:gocritic // nothing is deferred but stop
	}
}

func run(ctx context.Context, only []string) error {
	out := log.New(os.Stdout, "", log.Ltime)
	mutants, err := load(folder, only)
	if err != nil {
		return err
	}
	from, err := os.Getwd()
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	g := &ground{from: from, top: filepath.Join(temp, "repository"), bin: temp}
	if err := copyTree(ctx, from, g.top); err != nil {
		return err
	}
	if err := g.green(ctx, mutants, out); err != nil {
		return err
	}
	red, err := g.try(ctx, mutants, out)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, renewTable(mutants, red))
}

// green sees that the tests are green as things are.
func (g *ground) green(ctx context.Context, mutants []mutant, out *log.Logger) error {
	binaries, done := map[string]string{}, map[test]bool{}
	for i := range mutants {
		t := mutants[i].test
		if done[t] {
			continue
		}
		done[t] = true
		var err error
		if binaries[t.pkg] == "" {
			if binaries[t.pkg], err = g.compile(ctx, t.pkg); err != nil {
				return fmt.Errorf("%s: %w", t.pkg, err)
			}
		}
		v, err := g.run(ctx, binaries[t.pkg], t)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", t, err)
		case v.red:
			return fmt.Errorf("%s is red before anything is broken: %s", t, v.said)
		}
		out.Printf("green  %s (%s)", t, v.took.Round(100*time.Millisecond))
	}
	return nil
}

// try tries all mutants, whatever became of those before. It returns how long the tests of
// those took that were seen.
func (g *ground) try(ctx context.Context, mutants []mutant, out *log.Logger) (map[string]string, error) {
	red := map[string]string{}
	var wrong []error
	for i := range mutants {
		m := &mutants[i]
		v, err := g.bite(ctx, m)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		switch {
		case err != nil:
			wrong = append(wrong, fmt.Errorf("%s: %w", m.name, err))
			out.Printf("ERROR  %s: %v", m.name, err)
		case !v.red:
			wrong = append(wrong, fmt.Errorf("%s survived %s", m.name, m.test))
			out.Printf("GREEN  %s: it survived %s", m.name, m.test)
		default:
			red[m.name] = fmt.Sprintf("%.0f", v.took.Seconds())
			out.Printf("red    %s (%s): %s", m.name, v.took.Round(100*time.Millisecond), v.said)
		}
	}
	return red, errors.Join(wrong...)
}
