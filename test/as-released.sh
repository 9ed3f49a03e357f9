# To be sourced. All programs and tests are compiled with the flags of a release, so that Go compiles each package once. Only
# tests with the race detector are not, because it needs cgo. The version comes from git describe: stamping fails in checkouts of other users.
export CGO_ENABLED=0 GOFLAGS='-buildvcs=false -tags=grpcnotrace -trimpath'
