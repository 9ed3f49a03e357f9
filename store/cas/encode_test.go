package cas_test

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/key"
)

// TestRecordsAreWrittenByTheirTags: the encoder writes what the library writes for any record. So a field that the encoder
// does not know is found, too.
func TestRecordsAreWrittenByTheirTags(t *testing.T) {
	library, err := cbor.EncOptions{Time: cbor.TimeRFC3339NanoUTC}.EncMode()
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 2000 {
		rec := &key.Record{}
		if i > 0 {
			fill(r, reflect.ValueOf(rec).Elem())
		}
		want, err := library.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		got := cas.Encode(rec)[1:] // without the format
		for at := range max(len(got), len(want)) {
			if at >= len(got) || at >= len(want) || got[at] != want[at] {
				t.Fatalf("seed %d, record %d: written other than by its tags from byte %d on: %.40x, want %.40x", seed, i, at, got[min(at, len(got)):], want[min(at, len(want)):])
			}
		}
	}
}

// fill sets each field to a random value, or leaves it empty. Tokens stay below those that mean an offset.
func fill(r *rand.Rand, v reflect.Value) {
	if r.IntN(3) == 0 {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.UnixMicro(r.Int64N(1 << 52)).In(time.FixedZone("", 3600))))
			return
		}
		for _, field := range v.Fields() {
			fill(r, field)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), r.IntN(4)*r.IntN(10), 30))
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).SetUint(uint64(r.IntN(256)))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(r, v.Elem())
	case reflect.String:
		v.SetString(strings.Repeat("é", r.IntN(20)*r.IntN(20)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8:
		v.SetUint(uint64(r.IntN(256)))
	case reflect.Int, reflect.Int64:
		v.SetInt(r.Int64N(1<<r.IntN(60)) - r.Int64N(1<<r.IntN(60)))
	case reflect.Func: // not written
	default:
		panic(v.Kind())
	}
}
