package console

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const rows = "document.querySelectorAll('table.locks tbody tr').length"

func TestList(t *testing.T) {
	w := newWorld(t)
	w.startSidecar()
	w.startConsole()
	b := newBrowser(t)
	b.do(chromedp.Navigate(w.url))
	b.await(has("h1", "No locks are held"))
	if text := b.eval("document.querySelector('.empty').innerText"); !strings.Contains(text, "locksidecar acquire deploy:prod") {
		t.Errorf("an empty list says %s", text)
	}

	// A change is seen within a second.
	app := w.app()
	slowest := time.Duration(0)
	for n := range 5 {
		key := fmt.Sprintf("job:%d", n)
		began := time.Now()
		app.wants(200, "PUT", "/v1/locks/"+key, `{"owner":"thread-1"}`)
		b.await(has(".key", key))
		slowest = max(slowest, time.Since(began))
	}
	t.Logf("the slowest of 5 changes was seen after %s", slowest)
	if slowest > time.Second {
		t.Errorf("a change was seen after %s", slowest)
	}

	// The focus stays where it is while the page changes; so does a selection.
	b.do(chromedp.Focus(".key", chromedp.ByQuery))
	focused := b.eval("document.activeElement.textContent")
	app.wants(200, "PUT", "/v1/locks/aaa:first", "")
	b.await(has(".key", "aaa:first"))
	if now := b.eval("document.activeElement.textContent"); now != focused || !strings.HasPrefix(focused, "job:") {
		t.Errorf("the focus moved from %q to %q", focused, now)
	}

	// The keyboard: the filter, the order, a key.
	b.do(input.DispatchKeyEvent(input.KeyDown).WithKey("/").WithText("/"), input.DispatchKeyEvent(input.KeyUp).WithKey("/"))
	if id := b.eval("document.activeElement.id"); id != "q" {
		t.Errorf("/ focuses %q", id)
	}
	b.do(chromedp.KeyEvent("thread-1"+kb.Enter), chromedp.WaitVisible(".clear", chromedp.ByQuery))
	b.await(rows + " == 5")
	if at := b.eval("location.search"); at != "?q=thread-1&type=&mode=&sort=held" {
		t.Errorf("the filter leads to %s", at)
	}
	b.do(chromedp.Click("#s-key", chromedp.ByQuery), chromedp.WaitVisible("th.c-key[aria-sort=ascending]", chromedp.ByQuery))
	b.do(chromedp.Click("#s-key", chromedp.ByQuery), chromedp.WaitVisible("th.c-key[aria-sort=descending]", chromedp.ByQuery))
	if first := b.eval("document.querySelector('.key').textContent"); first != "job:4" {
		t.Errorf("the first key is %q", first)
	}
	b.quiet()

	// A key's page is reachable by the keyboard alone.
	b.do(chromedp.Focus(".key", chromedp.ByQuery), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(".keyname", chromedp.ByQuery))
	if name := b.eval("document.querySelector('.keyname').textContent"); name != "job:4" {
		t.Errorf("the key's page is of %q", name)
	}
	if n := b.eval("document.querySelectorAll('form').length"); n != "0" {
		t.Errorf("without the flags there are %s forms", n)
	}
	b.quiet()
}

func TestHostileKeys(t *testing.T) {
	w := newWorld(t)
	w.startSidecar()
	w.startConsole()
	app := w.app()
	keys := []string{
		`x:<script>alert(1)</script>`, `"onmouseover=alert(1) x="`, `<img src=x onerror=alert(1)>`, `'><svg/onload=alert(1)>`,
		"rtl:\u202egnp.exe", `javascript:alert(1)`, "../..?a#b&c=%3Cb%3E+", strings.Repeat("<b>", 170), "line\u2028separator",
	}
	for _, key := range keys {
		app.wants(200, "PUT", "/v1/locks/"+url.PathEscape(key), `{"owner":"<img src=y onerror=alert(2)>","data":{"x":"</script><script>alert(3)</script>"}}`)
	}
	b := newBrowser(t)
	b.do(chromedp.Navigate(w.url + "/?sort=key"))
	b.await(fmt.Sprintf("%s == %d", rows, len(keys)))
	for n := range keys {
		b.do(chromedp.Navigate(w.url + "/?sort=key"))
		b.await(fmt.Sprintf("%s == %d", rows, len(keys)))
		b.do(chromedp.Evaluate(fmt.Sprintf("document.querySelectorAll('.key')[%d].click()", n), nil), chromedp.WaitVisible(".keyname", chromedp.ByQuery))
		b.await(has(".holder code", "alert(3)")) // the page of this very key
	}
	if n := b.eval("document.querySelectorAll('img, svg, b').length"); n != "0" {
		t.Errorf("%s elements came from keys", n)
	}
	b.quiet()
}

func TestStopAndBreak(t *testing.T) {
	w := newWorld(t)
	w.startSidecar()
	w.startConsole("--allow-stop", "--allow-force")
	app := w.app()
	app.wants(200, "PUT", "/v1/locks/backup:nightly", `{"owner":"thread-1"}`)
	b := newBrowser(t)
	b.do(chromedp.Navigate(w.url), chromedp.Click(".key", chromedp.ByQuery))
	// What is being typed stays, while the page changes below it.
	b.do(chromedp.SendKeys("input[name=reason]", "the database goes", chromedp.ByQuery))
	held := b.eval("document.querySelector('.holder time').textContent")
	b.await(fmt.Sprintf("document.querySelector('.holder time').textContent != %q", held))
	b.do(chromedp.SendKeys("input[name=reason]", " down at 3:00", chromedp.ByQuery), chromedp.Click(".acts button", chromedp.ByQuery))
	b.await(has(".banner", "The holder was asked to stop"))
	b.await(has(".holder", "the database goes down at 3:00"))
	b.await(has(".events", "stopping"))
	if answer := app.wants(200, "GET", "/v1/locks/backup:nightly", ""); !strings.Contains(answer, "goes down at 3:00") {
		t.Errorf("the sidecar was not asked: %s", answer)
	}
	b.do(chromedp.Click("summary", chromedp.ByQuery))
	held = b.eval("document.querySelector('.holder time').textContent")
	b.await(fmt.Sprintf("document.querySelector('.holder time').textContent != %q", held))
	b.do(chromedp.Click("button.danger", chromedp.ByQuery)) // it is still open
	b.await(has(".banner", "The lock was broken"))
	b.await(has("main", "Nobody holds this key now"))
	if answer := app.wants(200, "GET", "/v1/locks/backup:nightly", ""); !strings.Contains(answer, `"state":"free"`) {
		t.Errorf("it is not broken: %s", answer)
	}
	b.quiet()
}

// The page says what is wrong, and recovers by itself.
func TestOutages(t *testing.T) {
	w := newWorld(t)
	w.startSidecar()
	w.startConsole()
	w.app().wants(200, "PUT", "/v1/locks/job:1", `{"bind":"ttl","ttl_ms":600000}`)
	b := newBrowser(t)
	b.do(chromedp.Navigate(w.url))
	b.await(has(".key", "job:1"))
	stop(w.sidecar)
	b.await(has("#problem", "no sidecar listens at"))
	b.await(has(".stale .key", "job:1"))
	w.startSidecar()
	b.await("!document.querySelector('#problem')")
	b.quiet()
	stop(w.console)
	b.await("!document.querySelector('#offline').hidden")
	w.startConsole()
	w.app().wants(200, "PUT", "/v1/locks/job:2", `{"bind":"ttl","ttl_ms":600000}`)
	b.await("document.querySelector('#offline').hidden && " + has(".key", "job:2"))
	b.quiet("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING")
}

// The page is live although the script for this comes late.
func TestAScriptComesLate(t *testing.T) {
	w := newWorld(t)
	w.startSidecar()
	w.startConsole()
	app := w.app()
	app.wants(200, "PUT", "/v1/locks/job:1", `{"bind":"ttl","ttl_ms":600000}`)
	b := newBrowser(t)
	chromedp.ListenTarget(b.ctx, func(event any) {
		if paused, ok := event.(*fetch.EventRequestPaused); ok {
			time.AfterFunc(300*time.Millisecond, func() { _ = chromedp.Run(b.ctx, fetch.ContinueRequest(paused.RequestID)) })
		}
	})
	b.do(fetch.Enable().WithPatterns([]*fetch.RequestPattern{{URLPattern: "*/hx-sse.min.js"}}))
	b.do(chromedp.Navigate(w.url))
	b.await(has(".key", "job:1"))
	app.wants(200, "PUT", "/v1/locks/job:2", `{"bind":"ttl","ttl_ms":600000}`)
	b.await(has(".key", "job:2"))
}

// 10,000 locks are shown page by page, and the page stays quick.
func TestTenThousandLocks(t *testing.T) {
	w := newWorld(t)
	w.startSidecar()
	w.startConsole()
	app := w.app()
	for n := range 100 {
		var keys []string
		for m := range 100 {
			keys = append(keys, strconv.Quote(fmt.Sprintf("order:%02d%02d", n, m)))
		}
		app.wants(200, "POST", "/v1/locks", `{"bind":"ttl","ttl_ms":600000,"keys":[`+strings.Join(keys, ",")+`]}`)
	}
	b := newBrowser(t)
	b.do(chromedp.Navigate(w.url + "/?sort=key"))
	b.await(rows + " == 100")
	b.do(chromedp.Evaluate(`window.longest = 0; new PerformanceObserver(l => l.getEntries().forEach(e => { window.longest = Math.max(window.longest, e.duration) })).observe({type: "longtask"});
		window.changes = 0; new MutationObserver(l => { window.changes += l.length }).observe(document.getElementById("live"), {subtree: true, childList: true, characterData: true, attributes: true});
		window.updates = 0; document.addEventListener("htmx:sse:after:message", () => window.updates++)`, nil))
	b.await("window.updates >= 4")
	t.Logf("the page of 10,000 locks was there after %s ms; the longest task of 4 updates took %s ms",
		b.eval("Math.round(performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd)"), b.eval("window.longest"))
	// An update changes the times of the rows, at most: two texts in each of 100 rows, each of which may be replaced.
	if changes, _ := strconv.Atoi(b.eval("Math.round(window.changes / window.updates)")); changes > 600 {
		t.Errorf("an update makes %d changes to the page", changes)
	}
	b.do(chromedp.Click("#next", chromedp.ByQuery))
	b.await(has(".key", "order:0100"))
	b.quiet()
}

// Without JavaScript the pages can be read, filtered and sorted.
func TestWithoutJavaScript(t *testing.T) {
	w := newWorld(t)
	w.startSidecar()
	w.startConsole("--allow-stop")
	app := w.app()
	app.wants(200, "PUT", "/v1/locks/a:1", "")
	app.wants(200, "PUT", "/v1/locks/b:2", "")
	b := newBrowser(t)
	text := func() (text string) {
		b.do(chromedp.Text("body", &text, chromedp.ByQuery))
		return text
	}
	b.do(emulation.SetScriptExecutionDisabled(true), chromedp.Navigate(w.url))
	if all := text(); !strings.Contains(all, "a:1") || !strings.Contains(all, "b:2") || !strings.Contains(all, "Reload to update") {
		t.Error(all)
	}
	b.do(chromedp.SendKeys("#q", "b:"+kb.Enter, chromedp.ByQuery), chromedp.WaitVisible(".clear", chromedp.ByQuery))
	if one := text(); strings.Contains(one, "a:1") || !strings.Contains(one, "b:2") {
		t.Error(one)
	}
	b.do(chromedp.Click(".key", chromedp.ByQuery), chromedp.Click(".acts button", chromedp.ByQuery), chromedp.WaitVisible(".banner:not([hidden])", chromedp.ByQuery))
	if asked := text(); !strings.Contains(asked, "The holder was asked to stop") || !strings.Contains(asked, "no reason given") {
		t.Error(asked)
	}
}

// TestSidecars: sessions and sidecars have their versions, and lead to their locks, as the totals do; and the page is live.
func TestSidecars(t *testing.T) {
	w := newWorld(t)
	w.startSidecar()
	w.startConsole()
	b := newBrowser(t)
	b.do(chromedp.Navigate(w.url), chromedp.Click("nav a[href='./sidecars']", chromedp.ByQuery))
	b.await(has("#content", "No sidecar holds a lock."))
	app := w.app()
	app.wants(200, "PUT", "/v1/locks/job:1", "")
	app.wants(200, "PUT", "/v1/locks/job:2", "")
	b.await(has(".instances td", "web-0"))
	b.await(has(".sessions tbody", "2"))
	if version := b.eval("document.querySelector('.totals dt').textContent"); !strings.HasPrefix(version, "Version ") {
		t.Errorf("%q", version)
	}
	b.do(chromedp.Click(".sessions .who", chromedp.ByQuery), chromedp.WaitVisible("table.locks", chromedp.ByQuery))
	b.await(rows + " == 2")
	b.do(chromedp.Click("nav a[href='./totals']", chromedp.ByQuery), chromedp.WaitVisible("#content a[href='/?type=job']", chromedp.ByQuery))
	b.do(chromedp.Click("#content a[href='/?type=job']", chromedp.ByQuery), chromedp.WaitVisible("table.locks", chromedp.ByQuery))
	b.await(rows + " == 2")
	b.quiet()
}

// TestChooseNamespace: another namespace is chosen by the keyboard alone, its pages are live, and their links stay in it.
func TestChooseNamespace(t *testing.T) {
	w := newWorld(t)
	made(t, w.socket, "namespaces")
	w.startConsole()
	b := newBrowser(t)
	b.do(chromedp.Navigate(w.url))
	b.await(rows + " == 12")
	b.do(chromedp.Focus(".namespaces summary", chromedp.ByQuery), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(".namespaces nav a", chromedp.ByQuery))
	b.do(chromedp.KeyEvent(kb.Tab+kb.Tab+kb.Enter), chromedp.WaitVisible("table.locks", chromedp.ByQuery))
	b.await(rows + " == 4 && location.pathname == '/n/billing%20&%20co/'")
	b.do(chromedp.Click("nav a[href='./sidecars']", chromedp.ByQuery), chromedp.WaitVisible(".sessions", chromedp.ByQuery))
	b.await("location.pathname == '/n/billing%20&%20co/sidecars'")
	b.await(has(".namespaces summary", "billing & co"))
	b.quiet()
}
