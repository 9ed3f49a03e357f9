package locksidecar

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// Option is an option of an acquire.
type Option func(*options)

// options are those of one acquire.
type options struct {
	wait      time.Duration // negative: for ever
	waitSet   bool
	body      acquireBody
	named     bool // the app has named the request
	onLost    func(error)
	onStop    func(Stopping)
	err       error
	owner     string
	reentrant bool
}

// acquireBody is the body of an acquire.
type acquireBody struct {
	Keys      []string        `json:"keys,omitempty"`
	WaitMS    int64           `json:"wait_ms"`
	TTLMS     *int64          `json:"ttl_ms,omitempty"`
	Bind      Bind            `json:"bind,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	RequestID string          `json:"request_id,omitempty"`
	Owner     string          `json:"owner,omitempty"`
	Reentrant bool            `json:"reentrant,omitempty"`
	MaxHoldMS *int64          `json:"max_hold_ms,omitempty"`
	MinHoldMS *int64          `json:"min_hold_ms,omitempty"`
	OnSuccess string          `json:"on_success,omitempty"`
	Mode      Mode            `json:"mode,omitempty"`
	Limit     *int            `json:"limit,omitempty"`
}

// Wait limits the wait in the queue. With 0 the call does not wait. Without this option, it waits until its context ends.
func Wait(most time.Duration) Option {
	return func(o *options) {
		o.wait, o.waitSet = most, true
		if most < 0 {
			o.fail(invalid("wait_ms is %s: it must not be negative; without this option, the call waits until its context ends", most))
		}
	}
}

// TTL is how long the lock outlives a dead sidecar (less than twice that); a living one renews it. With [BindToTTL], how long it lasts.
func TTL(d time.Duration) Option {
	return func(o *options) { o.body.TTLMS = o.duration("ttl_ms", d) }
}

// BindToTTL makes the lock outlive the process: it ends after its [TTL], or with a release by key and token, which anybody can
// guess. Extend it before its end to hold it for longer.
func BindToTTL() Option { return func(o *options) { o.body.Bind = BindTTL } }

// Shared: shared holders do not exclude each other.
func Shared() Option { return func(o *options) { o.body.Mode = ModeShared } }

// Limit is the most shared holders at a time, 1 to 1000, with [Shared]: see [Client.Semaphore]. All callers of the key name the same.
func Limit(most int) Option { return func(o *options) { o.body.Limit = &most } }

// Owner is a part of the session, such as a job, which others see. Calls with another owner wait.
func Owner(name string) Option {
	return func(o *options) {
		o.owner = name
		if !utf8.ValidString(name) || name == "" {
			o.fail(invalid("owner: it is 1 to 255 bytes of UTF-8"))
		}
	}
}

// Reentrant: code under the lock, which has its context, enters it again, and each entry has its release. Both calls need the
// option. [Owner] names who enters; by default it is the code under the outermost reentrant lock.
func Reentrant() Option { return func(o *options) { o.reentrant = true } }

// MaxHold: after this time the sidecar releases the lock, which is a loss.
func MaxHold(d time.Duration) Option {
	return func(o *options) { o.body.MaxHoldMS = o.duration("max_hold_ms", d) }
}

// MinHold: nobody else gets the lock before, even if it is released or the process dies.
func MinHold(d time.Duration) Option {
	return func(o *options) { o.body.MinHoldMS = o.duration("min_hold_ms", d) }
}

// Data is shown to others as part of the holder: anything that JSON can carry in 4 KiB.
func Data(value any) Option {
	return func(o *options) {
		text, err := json.Marshal(value)
		if err != nil {
			o.fail(invalid("data: it cannot be made into JSON: %v", err))
		}
		o.body.Data = text
	}
}

// SkipIfDone: if the holder releases with [OutcomeSuccess] while this call waits, it gets [ErrSkipped] with the result instead of the lock.
func SkipIfDone() Option { return func(o *options) { o.body.OnSuccess = "skip" } }

// RequestID is a UUID of your own: the same id gets the same grant. If such a call is interrupted, its grant stays: ask again with it.
func RequestID(uuid string) Option {
	return func(o *options) {
		o.body.RequestID, o.named = uuid, true
		if uuid == "" {
			o.fail(invalid("request_id: it is empty; it must be a UUID"))
		}
	}
}

// OnLost is called once if the lock is lost, in a goroutine of its own.
func OnLost(f func(error)) Option { return func(o *options) { o.onLost = f } }

// OnStop is called for each request to stop, one after another. It must not block, because the session's later news waits for it.
func OnStop(f func(Stopping)) Option { return func(o *options) { o.onStop = f } }

func (o *options) fail(err error) {
	if o.err == nil {
		o.err = err
	}
}

func (o *options) duration(name string, d time.Duration) *int64 {
	if d < 0 {
		o.fail(invalid("%s is %s: it must not be negative", name, d))
	}
	n := toMS(d)
	return &n
}

// optionsOf applies options, and adds a request id.
func optionsOf(opts []Option) (*options, error) {
	o := &options{wait: -1}
	for _, option := range opts {
		option(o)
	}
	if o.err != nil {
		return nil, o.err
	}
	if !o.named {
		o.body.RequestID = newUUID()
	}
	o.body.WaitMS = -1
	if o.waitSet {
		o.body.WaitMS = toMS(o.wait)
	}
	return o, nil
}

// newUUID is a random UUID (version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// needs are the features without which a sidecar would not understand the call.
func (b *acquireBody) needs() (features []string) {
	add := func(is bool, feature string) {
		if is {
			features = append(features, feature)
		}
	}
	add(b.WaitMS != 0, "wait")
	add(b.Bind == BindTTL, "bind_ttl")
	add(b.Data != nil, "data")
	add(b.Owner != "" || b.Reentrant, "reentrant")
	add(b.MaxHoldMS != nil || b.MinHoldMS != nil, "hold")
	add(b.OnSuccess != "", "outcome")
	add(b.Mode == ModeShared, "shared")
	add(len(b.Keys) > 0, "several_keys")
	return features
}

// lacking is the error of a sidecar that lacks one of the features, or nil.
func lacking(about *Description, features ...string) error {
	for _, feature := range features {
		if !about.Has(feature) {
			return &Error{Code: "unsupported", Detail: fmt.Sprintf("the sidecar (%s) is older than this client: it lacks %q", about.Version, feature)}
		}
	}
	return nil
}

// ReleaseOption is an option of a release.
type ReleaseOption func(*releaseBody)

type releaseBody struct {
	Token     int64           `json:"token,omitempty"`
	RequestID string          `json:"request_id,omitempty"`
	Outcome   Outcome         `json:"outcome,omitempty"`
	Reentry   int             `json:"reentry,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	err       error
}

// WithOutcome says what became of the work: waiting calls with [SkipIfDone], and watchers, learn it.
func WithOutcome(outcome Outcome) ReleaseOption { return func(b *releaseBody) { b.Outcome = outcome } }

// WithResult is JSON of at most 4 KiB for them. The outcome is [OutcomeSuccess].
func WithResult(value any) ReleaseOption {
	return func(b *releaseBody) {
		text, err := json.Marshal(value)
		if err != nil {
			b.err = invalid("result: it cannot be made into JSON: %v", err)
		}
		b.Outcome, b.Result = OutcomeSuccess, text
	}
}

// WithReentry refuses the release unless the lock has this number of entries.
func WithReentry(count int) ReleaseOption { return func(b *releaseBody) { b.Reentry = count } }

func releaseOf(token int64, entry string, opts []ReleaseOption) (releaseBody, error) {
	b := releaseBody{Token: token, RequestID: entry}
	for _, option := range opts {
		option(&b)
	}
	return b, b.err
}
