package metrics

import "unsafe"

// LostReasons are compared with those of package lease, which needs this package.
var LostReasons = lostReasons

func unsafeString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
