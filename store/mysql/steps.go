package mysql

import "context"

// steps are where tests wait. They do nothing otherwise.
type steps struct {
	beforeSleep func(ctx context.Context)
	afterLook   func(asleep bool)
}

// sleeps is called just before a sleep is sent.
func (s *steps) sleeps(ctx context.Context) {
	if s.beforeSleep != nil {
		s.beforeSleep(ctx)
	}
}

// looked is called after a look into the mailbox.
func (s *steps) looked(asleep bool) {
	if s.afterLook != nil {
		s.afterLook(asleep)
	}
}
