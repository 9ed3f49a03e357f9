package mysql

// steps are where tests wait. They do nothing otherwise.
type steps struct {
	beforeSleep func()
	afterLook   func(asleep bool)
}

// sleeps is called just before a sleep is sent.
func (s *steps) sleeps() {
	if s.beforeSleep != nil {
		s.beforeSleep()
	}
}

// looked is called after a look into the mailbox.
func (s *steps) looked(asleep bool) {
	if s.afterLook != nil {
		s.afterLook(asleep)
	}
}
