module github.com/locksidecar/locksidecar/test/vuln/planted

go 1.26
