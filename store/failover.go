package store

// Failover says whether a quiet time follows a failover that can have forgotten grants of this instance:
// the store then grants nothing for the longest TTL in use. After that, holders of forgotten grants no
// longer believe in them.
type Failover string

const (
	// FailoverAuto is quick if a synchronous standby is configured, and otherwise quiet.
	FailoverAuto Failover = ""
	// FailoverQuiet is for servers whose failover may forget grants.
	FailoverQuiet Failover = "quiet"
	// FailoverQuick is for servers whose failover forgets nothing.
	FailoverQuick Failover = "quick"
)
