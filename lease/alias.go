package lease

import (
	"github.com/locksidecar/locksidecar/lease/internal/beat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// Package types documents these types and values. The rooms below this package use them, too.
type (
	Bind               = types.Bind
	Request            = types.Request
	Grant              = types.Grant
	ReleaseRequest     = types.ReleaseRequest
	Released           = types.Released
	AmendRequest       = types.AmendRequest
	View               = types.View
	Scope              = types.Scope
	ListRequest        = types.ListRequest
	Page               = types.Page
	WaitersRequest     = types.WaitersRequest
	WaitersPage        = types.WaitersPage
	Lost               = types.Lost
	Stop               = types.Stop
	LostReason         = types.LostReason
	SessionOptions     = types.SessionOptions
	EndReason          = types.EndReason
	HeldError          = types.HeldError
	SkippedError       = types.SkippedError
	NotHeldError       = types.NotHeldError
	QuietError         = types.QuietError
	ReentryError       = types.ReentryError
	LimitMismatchError = types.LimitMismatchError
	InvalidError       = types.InvalidError
	TimeoutError       = types.TimeoutError
	LostError          = types.LostError
	NotHolderReason    = types.NotHolderReason
	NotHolderError     = types.NotHolderError
	Config             = types.Config
	LimitError         = types.LimitError
)

// Beat lets the managers of one process renew their leases at the same time: see [Config]. The zero value is ready.
type Beat = beat.Beat

// Session owns locks. It ends with its connection.
type Session = holdings.Session

// The values of these types.
const (
	WaitForever        = types.WaitForever
	BindSession        = types.BindSession
	ScopePod           = types.ScopePod
	LostExpired        = types.LostExpired
	LostStore          = types.LostStore
	LostDisconnected   = types.LostDisconnected
	LostMaxHold        = types.LostMaxHold
	LostForced         = types.LostForced
	LostShutdown       = types.LostShutdown
	EndDropped         = types.EndDropped
	ReasonOtherSession = types.ReasonOtherSession
	ReasonReleased     = types.ReasonReleased
	ReasonUnknownToken = types.ReasonUnknownToken
	BindTTL            = types.BindTTL
	ScopeSession       = types.ScopeSession
	ScopeAll           = types.ScopeAll
	EndDeleted         = types.EndDeleted
	EndShutdown        = types.EndShutdown
)

// Errors that calls return.
var (
	ErrSessionEnded = types.ErrSessionEnded
	ErrDraining     = types.ErrDraining
	ErrCallerLeft   = types.ErrCallerLeft
	ErrWithdrawn    = types.ErrWithdrawn
)
