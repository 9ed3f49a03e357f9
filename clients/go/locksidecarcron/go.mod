module github.com/locksidecar/locksidecar/clients/go/locksidecarcron

go 1.25.0

require (
	github.com/locksidecar/locksidecar/clients/go v0.1.0
	github.com/robfig/cron/v3 v3.0.1
)

replace github.com/locksidecar/locksidecar/clients/go => ../
