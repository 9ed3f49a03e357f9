package postgres

import lru "github.com/hashicorp/golang-lru/v2"

// recentKeys are the keys that were released or shared here a short time ago. Each has a row, unless somebody has removed it
// since. What is known of a key only chooses between statements: if it is wrong, the next statement decides.
type recentKeys struct {
	next *lru.Cache[string, nextRelease]
}

// maxRecent limits the keys of recentKeys.
const maxRecent = 4096

// nextRelease is how the next release of a key probably goes.
type nextRelease bool

const (
	plainRelease  nextRelease = false // nobody waits: release_one, release_many
	wholeFunction nextRelease = true  // somebody waits, or the key is shared: the function release
)

func newRecentKeys() recentKeys {
	next, _ := lru.New[string, nextRelease](maxRecent) // fails only if it is to have no room
	return recentKeys{next}
}

// haveRow reports whether the key has a row.
func (r recentKeys) haveRow(key string) bool {
	_, known := r.next.Get(key)
	return known
}

// needFunction reports whether the next release of the key should not be tried as a plain one.
func (r recentKeys) needFunction(key string) bool {
	next, _ := r.next.Peek(key)
	return next == wholeFunction
}

// freed notes that a release made the key free.
func (r recentKeys) freed(key string) { r.next.Add(key, plainRelease) }

// handedOver notes that a release handed the key over. asExpected: its caller knew that somebody waits, and says so the next time, too.
func (r recentKeys) handedOver(key string, asExpected bool) {
	if asExpected {
		r.next.ContainsOrAdd(key, plainRelease)
	} else {
		r.next.Add(key, wholeFunction)
	}
}

// shared notes that a share of the key was granted here.
func (r recentKeys) shared(key string) { r.next.Add(key, wholeFunction) }
