package main

import "fmt"

// etcd measures what P2, P3, P5, P6, P8 and P10 measure, with the sidecar on etcd, beside etcd's own Mutex.
func (b *bench) etcd() ([]result, error) {
	held, err := b.etcdHeld()
	if err != nil {
		return nil, err
	}
	server, address, err := b.startPeer(startEtcd)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	o := &beside{
		id: "etcd", name: "etcd", url: "etcd://" + address, server: server,
		rivals:   []rival{{name: "etcd's own Mutex", args: []string{"etcd", address}, handOffs: 1.3}},
		position: etcdAPI{address}.revision,
		ends:     []func(){server.stop},
	}
	defer o.stop()
	if err := o.start(b); err != nil {
		return nil, err
	}
	rows, err := o.measure(b, 2, 64, 256, 1024)
	return append(held, rows...), err
}

// etcdAPI asks an etcd at an address by its API in JSON.
type etcdAPI struct{ address string }
