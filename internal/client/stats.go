package client

// Counts are numbers of locks and calls.
type Counts struct {
	Held        int64 `json:"held"`
	Shared      int64 `json:"shared"`
	Expired     int64 `json:"expired"`
	Waiting     int64 `json:"waiting"`
	AverageHeld int64 `json:"average_held_ms"`
	LongestHeld int64 `json:"longest_held_ms"`
}

// Stats are the counts of a database.
type Stats struct {
	Counts
	Types []struct {
		Counts
		Namespace string `json:"namespace"`
		Type      string `json:"type"`
	} `json:"types"`
	Pods []struct {
		Counts
		Namespace string `json:"namespace"`
		Pod       string `json:"pod"`
	} `json:"pods"`
}
