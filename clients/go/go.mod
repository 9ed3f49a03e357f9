module github.com/locksidecar/locksidecar/clients/go

go 1.25
