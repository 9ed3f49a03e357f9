package k8s

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/storage/etcd3/testserver"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app/testing"
)

var server apiserver.TestServer

// startServer starts the API server with its defaults: no feature gate and no admission plugin that a cluster would have to choose. The one flag is kubeadm's,
// too: the volume plugin of node mode is privileged.
func startServer(t testing.TB) {
	etcd := testserver.RunEtcd(t, testserver.NewTestConfig(t))
	storage := storagebackend.NewDefaultConfig("/registry", nil)
	storage.Transport.ServerList = etcd.Endpoints()
	started, err := apiserver.StartTestServer(t, apiserver.NewDefaultTestServerOptions(), []string{"--allow-privileged"}, storage)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(started.TearDownFn)
	server = started
}

// admin is the configuration of a client that may do everything.
func admin() *rest.Config { return rest.CopyConfig(server.ClientConfig) }

var (
	client        = sync.OnceValue(func() kubernetes.Interface { return kubernetes.NewForConfigOrDie(admin()) })
	dynamicClient = sync.OnceValue(func() dynamic.Interface { return dynamic.NewForConfigOrDie(admin()) })
	// restMapper knows the API's kinds, and looks again for one that it does not know.
	restMapper = sync.OnceValue(func() *restmapper.DeferredDiscoveryRESTMapper {
		return restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client().Discovery()))
	})
)

// mainTB is what the server wants of a test, for TestMain, which has none: no test is the
// one that the server ends with.
type mainTB struct {
	testing.TB // of which the methods below are all that is used; any other panics

	log      *os.File
	mu       sync.Mutex
	cleanups []func()
}

func (t *mainTB) Helper()      {}
func (t *mainTB) Name() string { return "TestMain" }
func (t *mainTB) Failed() bool { return false }

func (t *mainTB) Log(args ...any)                 { fmt.Fprintln(t.log, args...) }
func (t *mainTB) Logf(format string, args ...any) { fmt.Fprintf(t.log, format+"\n", args...) }

// Error comes from the server's goroutines, some of them while it stops.
func (t *mainTB) Error(args ...any)                 { t.Log(args...) }
func (t *mainTB) Errorf(format string, args ...any) { t.Logf(format, args...) }

func (t *mainTB) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (t *mainTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (t *mainTB) TempDir() string {
	dir, err := os.MkdirTemp("", "locksidecar-k8s-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (t *mainTB) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

func (t *mainTB) cleanUp() {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
}

func TestServerIsTheVersionThatTheManifestsAreFor(t *testing.T) {
	v, err := client().Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if v.Major != "1" || v.Minor != "36" {
		t.Errorf("got %v", v)
	}
	namespace(t, nil)
}
