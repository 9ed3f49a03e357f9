package console

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var (
	binary   = flag.String("binary", "../../bin/locksidecar", "the built sidecar")
	pictures = flag.String("pictures", "", "write the pictures into this folder")
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// world is a sidecar at a socket, or what a test puts there, and a console.
type world struct {
	t       *testing.T
	socket  string
	url     string
	sidecar *exec.Cmd
	console *exec.Cmd
}

func newWorld(t *testing.T) *world {
	t.Helper()
	folder, err := os.MkdirTemp("", "ls") // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return &world{t: t, socket: filepath.Join(folder, "s")}
}

// run starts the binary and returns when it has printed a line with a text.
func (w *world) run(until string, args ...string) (cmd *exec.Cmd, line string) {
	w.t.Helper()
	cmd = exec.Command(*binary, args...)
	cmd.Env = append(os.Environ(), "LOCKSIDECAR_SOCKET="+w.socket, "LOCKSIDECAR_POD=web-0", "LOCKSIDECAR_ALLOW_FORCE=true", "LOCKSIDECAR_STORE_URL=memory://", "LOCKSIDECAR_LOG_FORMAT=text")
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { stop(cmd) })
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			w.t.Fatalf("%s ended: %v", args, err)
		}
		if strings.Contains(line, until) {
			go func() { _, _ = io.Copy(io.Discard, lines) }()
			return cmd, line
		}
	}
}

// stop ends a process, once.
func stop(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
}

func (w *world) startSidecar() {
	w.t.Helper()
	w.sidecar, _ = w.run("msg=ready", "serve")
}

func (w *world) startConsole(args ...string) {
	w.t.Helper()
	listen := strings.TrimPrefix(w.url, "http://")
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	var line string
	w.console, line = w.run("the console serves", append([]string{"console", "--listen", listen}, args...)...)
	_, rest, _ := strings.Cut(line, "http://")
	address, _, _ := strings.Cut(rest, "/")
	w.url = "http://" + address
}

// app is a client with one connection, so with one session.
type app struct {
	t    *testing.T
	http *http.Client
}

func (w *world) app() *app {
	transport := &http.Transport{MaxConnsPerHost: 1, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
	}}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &app{w.t, &http.Client{Transport: transport, Timeout: patience}}
}

func (a *app) call(method, path, body string) (status int, answer string) {
	a.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, "http://sidecar"+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func (a *app) wants(status int, method, path, body string) (answer string) {
	a.t.Helper()
	got, answer := a.call(method, path, body)
	if got != status {
		a.t.Fatalf("%s %s: %d %s", method, path, got, answer)
	}
	return answer
}

// browser is a tab. Each message of the browser about an error or a refusal fails the test, unless it is expected.
type browser struct {
	t    *testing.T
	ctx  context.Context
	mu   sync.Mutex
	said []string
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.NoSandbox,
		chromedp.WindowSize(1240, 800), chromedp.Flag("hide-scrollbars", true))
	allocated, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocated)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *log.EventEntryAdded:
			b.hear(e.Entry.Text + " " + e.Entry.URL)
		case *runtime.EventExceptionThrown:
			b.hear(e.ExceptionDetails.Error())
		case *page.EventJavascriptDialogOpening:
			b.hear("a dialog: " + e.Message)
		}
	})
	if err := chromedp.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *browser) hear(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.said = append(b.said, text)
}

// quiet fails the test if the browser has complained, and forgets it.
func (b *browser) quiet(but ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
said:
	for _, text := range b.said {
		for _, expected := range but {
			if strings.Contains(text, expected) {
				continue said
			}
		}
		b.t.Errorf("the browser says: %s", text)
	}
	b.said = nil
}

// do carries out actions, which wait for their elements.
func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		var text string
		_ = chromedp.Run(b.ctx, chromedp.Evaluate("document.body.innerText", &text))
		b.t.Fatalf("%v; the page:\n%s", err, text)
	}
}

// await waits until an expression is true in the page, or in the next one.
func (b *browser) await(expression string) {
	b.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { // the pause of a poll
		var is bool
		err := chromedp.Run(b.ctx, chromedp.Evaluate("!!("+expression+")", &is))
		if err == nil && is {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("waited in vain for %s: %v; the page:\n%s", expression, err, b.eval("document.body.innerText"))
		}
	}
}

func (b *browser) eval(expression string) (value string) {
	b.t.Helper()
	b.do(chromedp.Evaluate("String("+expression+")", &value))
	return value
}

// has is an expression: the text of the elements contains this.
func has(selector, text string) string {
	return fmt.Sprintf("[...document.querySelectorAll(%q)].some(e => e.textContent.includes(%q))", selector, text)
}
