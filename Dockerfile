# The sidecar's image: one static file, and the CA certificates for databases and
# collectors behind TLS. Built by docker, buildah or podman: `make image`.

# A tag and no digest: it follows the fixes of one Go version on one Debian. A release
# pins what it was built with, and `make image` refuses it otherwise:
# GO_IMAGE=docker.io/library/golang:1.26-bookworm@sha256:…
ARG GO_IMAGE=docker.io/library/golang:1.26-bookworm

# Compiles on the builder's own platform, for the target's: nothing is emulated.
FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
ARG TARGETOS=linux
ARG TARGETARCH
ARG VERSION=devel
# The files' date, in seconds since 1970: the same sources make the same layer.
ARG SOURCE_DATE_EPOCH=0
# Where modules come from, and how they are checked: Go's own defaults unless given.
ARG GOPROXY=""
ARG GOSUMDB=""
WORKDIR /src
COPY . .
# The same flags as `make build`: the file is the same, bit by bit. The folder of the
# socket belongs to the sidecar's user, so that it starts without any volume.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -buildvcs=false -tags grpcnotrace -trimpath \
      -ldflags "-s -w -X main.version=$VERSION" -o /rootfs/locksidecar ./cmd/locksidecar && \
    mkdir -p /rootfs/etc/ssl/certs /rootfs/licenses /rootfs/run/locksidecar && \
    go run -buildvcs=false ./internal/licenses -image > /rootfs/licenses/LICENSES.gz && \
    cp /etc/ssl/certs/ca-certificates.crt /rootfs/etc/ssl/certs/ && \
    chmod -R a=rX,u+w /rootfs && chmod 0755 /rootfs/locksidecar && \
    chown 65532:65532 /rootfs/run/locksidecar && \
    find /rootfs -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

FROM scratch
ARG VERSION=devel
ARG REVISION=unknown
LABEL org.opencontainers.image.title="locksidecar" \
      org.opencontainers.image.description="Distributed locks for every process of a pod, over HTTP on a Unix socket" \
      org.opencontainers.image.source="https://github.com/locksidecar/locksidecar" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /rootfs/ /
# A number, so that runAsNonRoot can be checked without a user database.
USER 65532:65532
ENTRYPOINT ["/locksidecar"]
CMD ["serve"]
