package etcd_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/certtest"
	"github.com/locksidecar/locksidecar/internal/testing/etcdtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/etcd"
)

// oldServer says that it has some version.
type oldServer struct {
	pb.UnimplementedMaintenanceServer
	version string
}

func (o *oldServer) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Header: &pb.ResponseHeader{MemberId: 1}, Leader: 1, Version: o.version}, nil
}

// A server is refused if an old leader of its version may renew or revoke leases.
func TestOldServersAreRefused(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"3.4.23", "3.4.40", "3.5.12", "2.3.8"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		old := grpc.NewServer()
		pb.RegisterMaintenanceServer(old, &oldServer{version: version})
		go func() { _ = old.Serve(listener) }()
		t.Cleanup(old.Stop)
		s := on(t, cluster)
		s.url.Host = listener.Addr().String()
		r := s.start("one")
		r.Refuses("etcd " + version + "; locksidecar needs 3.5.13 or later")
		if _, err := r.SwapOne(cas.Swap{Key: "ns/key"}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
			t.Errorf("a swap on etcd %s: %v", version, err)
		}
	}
	for version, suits := range map[string]bool{"3.5.13": true, "3.6.0": true, "3.10.1": true, "4.0.0": true, "3.5.9": false, "": false} {
		if err := etcd.Suitable(version); (err == nil) != suits {
			t.Errorf("etcd %q: %v", version, err)
		}
	}
}

// One old server of several is enough to refuse them, because it may become the leader.
func TestOneOldServerIsEnough(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	old := grpc.NewServer()
	pb.RegisterMaintenanceServer(old, &oldServer{version: "3.4.23"})
	go func() { _ = old.Serve(listener) }()
	t.Cleanup(old.Stop)
	s := on(t, cluster)
	s.url.Host += "," + listener.Addr().String()
	s.start("one").Refuses("3.4.23")
}

// A server that comes later is found.
func TestServerComesLater(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t)
	c.Nodes[0].Kill()
	s := on(t, c)
	s.limit = time.Second
	r := s.start("one")
	if r.Ready() == nil {
		t.Fatal("ready without a server")
	}
	c.Nodes[0].Restart(t)
	r.BecomesReady()
	r.Write("one", 1)
	r.Reads(1)
}

// Tokens grow with revisions. If these go back, nothing is granted.
func TestRevisionGoesBack(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t)
	r := on(t, c).ready("one")
	for range 20 {
		r.Write("one", 1)
	}
	c.Nodes[0].Kill()
	c.Nodes[0].Wipe(t)
	c.Nodes[0].Restart(t)
	await.Until(t, "the server answers", func() bool {
		_, err := r.SwapOne(cas.Swap{Key: "ns/key"})
		if err == nil {
			t.Fatal("a swap succeeded")
		}
		return strings.Contains(err.Error(), "went back from revision")
	})
	r.Refuses("went back from revision")
}

// A lease is dead without its key, even if etcd's lease lives.
func TestDeletedLeaseKey(t *testing.T) {
	t.Parallel()
	s := on(t, cluster)
	r := s.ready("one")
	lease := r.OpenLease(time.Minute)
	if !r.Keeps(lease) {
		t.Fatal("the lease is dead")
	}
	if _, err := cluster.Client(t).Delete(r.Ctx, s.url.Path+"/l/"+lease.String()); err != nil {
		t.Fatal(err)
	}
	if kept, _, err := r.Renew(r.Ctx, []store.LeaseID{lease}); err != nil || len(kept) != 0 {
		t.Errorf("a renewal kept %v, %v", kept, err)
	}
}

// Letters are deleted when they were there at the look before, also those to instances that are gone.
func TestOldLettersAreDeleted(t *testing.T) {
	t.Parallel()
	s := on(t, cluster)
	r := s.ready("one")
	count := func() int64 {
		t.Helper()
		found, err := cluster.Client(t).Get(r.Ctx, s.url.Path+"/m/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		r.Must(err)
		return found.Count
	}
	for range 200 {
		r.Write("gone", 1)
	}
	look := r.Sweep(r.Ctx, 0)
	if n := count(); n != 200 {
		t.Errorf("the first look left %d letters of 200", n)
	}
	r.Write("gone", 2)
	look = r.Sweep(r.Ctx, look)
	if n := count(); n != 1 {
		t.Errorf("the second look left %d letters, want the new one", n)
	}
	r.Write("one", 3)
	r.Reads(3)
	r.Sweep(r.Ctx, look)
	r.Stop()
	if n := count(); n != 0 {
		t.Errorf("after the end there are %d letters", n)
	}
}

func TestUncompactedRevisionsAreReported(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t)
	s := on(t, c)
	log := s.logged()
	r := s.ready("one")
	r.Write("one", 1)
	r.Stop()
	r = s.ready("two")
	r.AtRevision(r.Ctx, 99_999)
	if log.Has("--auto-compaction-retention") {
		t.Error("a warning about few revisions")
	}
	c.Compact(t)
	r.AtRevision(r.Ctx, 100_000)
	if log.Has("--auto-compaction-retention") {
		t.Error("a warning after a compaction")
	}
	other := on(t, cluster)
	log = other.logged()
	r = other.ready("one")
	r.AtRevision(r.Ctx, 100_000)
	if !log.Has("--auto-compaction-retention") || !log.Has("revisions=100000") {
		t.Errorf("no warning: %s", log)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	authority := certtest.New(t)
	c := etcdtest.Start(t, etcdtest.WithTLS(authority, true))
	s := on(t, c)
	ca := certtest.MountFiles(t, map[string][]byte{"ca.crt": authority.PEM(), "other.crt": certtest.New(t).PEM()})
	own := certtest.Mount(t, authority.IssueClient("sidecar"))
	files := "&cert=" + own.CertFile() + "&key=" + own.KeyFile()
	s.limit = time.Second

	s.url.RawQuery = "cacert=" + ca.File("ca.crt") + files
	r := s.ready("one")
	r.Write("one", 1)
	r.Reads(1)
	s.url.Scheme = "etcds"
	s.ready("two")

	s.url.RawQuery = "cacert=" + ca.File("other.crt") + files
	if s.start("three").Ready() == nil {
		t.Error("ready with a server of another CA")
	}
	s.url.RawQuery = "cacert=" + ca.File("ca.crt")
	if s.start("four").Ready() == nil {
		t.Error("ready without a certificate")
	}
	s.url.Scheme, s.url.RawQuery = "etcd", ""
	if s.start("five").Ready() == nil {
		t.Error("ready without TLS")
	}
}

// A user needs the password, which may be replaced, and rights for the prefix.
func TestUsers(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t)
	s := on(t, c)
	root := c.Client(t)
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(root.UserAdd(ctx, "root", "root"))
	must(root.UserGrantRole(ctx, "root", "root"))
	must(root.RoleAdd(ctx, "locks"))
	prefix := s.url.Path + "/"
	must(root.RoleGrantPermission(ctx, "locks", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite)))
	must(root.UserAdd(ctx, "sidecar", "old"))
	must(root.UserGrantRole(ctx, "sidecar", "locks"))
	must(root.UserAdd(ctx, "stranger", "old"))
	must(root.AuthEnable(ctx))

	s.limit = time.Second
	s.start("nobody").Refuses("user name is empty")
	with := func(user, password string) string {
		return strings.Replace(s.url.String(), "://", "://"+user+":"+password+"@", 1)
	}
	begin := func(url string, again func() (string, error)) *rig {
		server, err := etcd.NewServer(etcd.Config{URL: url, Again: again, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		b := castest.Only(t, server, "one").(*etcd.Backend)
		return &rig{b, castest.Start(t, b)}
	}
	begin(with("sidecar", "wrong"), nil).Refuses("authentication failed")
	begin(with("stranger", "old"), nil).Refuses("permission denied")

	urls := make(chan string, 1)
	urls <- with("sidecar", "wrong")
	replaced := begin(with("sidecar", "wrong"), func() (string, error) {
		now := <-urls
		urls <- now
		return now, nil
	})
	replaced.Refuses("authentication failed")
	<-urls
	urls <- with("sidecar", "old")
	replaced.BecomesReady()
	replaced.Write("one", 1)
	replaced.Reads(1)
	lease := replaced.OpenLease(time.Minute)
	if !replaced.Keeps(lease) {
		t.Error("a renewal failed")
	}
	must(nil, replaced.Revoke(ctx, []store.LeaseID{lease}))
}
