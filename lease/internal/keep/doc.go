// Package keep remembers the keys that this sidecar keeps, and those that it may keep. A kept key is a release that is put off: the store
// has the key under this sidecar's lease, and no session has it. The next session that asks here takes it without a statement.
// Package attempt has the flows: how a release keeps a key, how a call takes one, how one is given up (attempt/keep.go). This package has the
// state, all of it in [Table], and does not ask the store.
//
// # The states of a key
//
//	state      | what the store has                    | what a call of this sidecar does | what a recall does
//	free       | nothing of this sidecar               | asks, with the last token        | is remembered
//	held       | a grant, which a session here has     | is refused, or waits             | is remembered; the store is told of the holder
//	kept       | the same grant, which no session has  | takes it, or gives it up first   | gives it up
//	given up   | the grant, until the release is known | waits for that                   | nothing
//
// Free and held are one state of an entry: package holdings knows the holder. An entry leaves "kept" and "given up" by these ways only:
//
//	free, held ──Keep──▶ kept ──Take──▶ held
//	                      │ └──GiveUp, Recall, Due──▶ given up ──GaveUp──▶ free
//	                      └── Return (a take that nobody got) ──▶ given up
//
// # Nobody is overlooked
//
// A call is present from its arrival until it returns (CallCame, CallLeft). Keep refuses while a call is present, in one step with putting the key there.
// So a call that finds a key not kept never finds it kept later, and the store's answer to it is not older than a release that was put off. A call
// that finds the key given up waits for the outcome. So no call is refused because of a key that its own sidecar keeps.
//
// # When a key is not kept
//
// A grant may be kept for [MaxAge] after its ask, and under [store.TokensPerGrant] tokens. A recall ends that. It may come before the answer
// with the grant, so it is remembered by key, and compared with the time at which the ask was sent.
//
// A recall costs the store and the sidecars several statements, and a take saves its share of two. So a recall has a price in takes: at least 3, and
// more if many calls share a statement. If the key was taken less often than that since its last recall, keeping it did not pay. Then the key must be
// granted here N times in a row before it is kept again. N doubles with each recall that did not pay, up to maxStreak, and halves with each that did.
//
// So a key is kept if
//
//  1. it was released here within [Table]'s time, and the store says that nobody had it since,
//  2. no grants in a row are missing, and
//  3. it has paid itself (at its last recall, or since), or new keys pay: their takes lately are worth the price of their recalls, or there were few recalls.
//
// If new keys do not pay, one a second is kept nevertheless, to find out when they do. That they do not is forgotten a minute after the last recall of one. What
// is known of a key is forgotten with its entry.
package keep
