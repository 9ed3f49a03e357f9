package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// address is the node's. It lies on lo, but not in 127/8, which pods could not reach.
	address = "10.99.0.1"
	// service is the address of the Service "kubernetes". The API server has it itself, so pods reach it without kube-proxy.
	service = "10.96.0.1"
	// cgroup is the one below which the kubelet makes those of pods.
	cgroup = "locksidecar-node"
	// patience is how long anything may take that takes seconds.
	patience = 2 * time.Minute
)

// enter prepares the node's own mounts and network. The kubelet sets three sysctls of the whole
// machine: in here they are files. What the volume plugin mounts below /var/lib reaches the kubelet. Then bash collects processes that have lost their parents.
const enter = `set -eu
mount --make-rprivate /
mount -t proc proc /proc
hostname node1
mkdir -p "$0/lib" "$0/log"
mount --bind "$0/lib" /var/lib
mount --make-shared /var/lib
mount -t tmpfs tmpfs /run
mkdir /run/sysctl /run/cni /run/kube
echo 1 > /run/sysctl/overcommit_memory; mount --bind /run/sysctl/overcommit_memory /proc/sys/vm/overcommit_memory
echo 10 > /run/sysctl/panic; mount --bind /run/sysctl/panic /proc/sys/kernel/panic
echo 1 > /run/sysctl/panic_on_oops; mount --bind /run/sysctl/panic_on_oops /proc/sys/kernel/panic_on_oops
cp testdata/cni.conflist /run/cni/
ip link set lo up
ip addr add ` + address + `/32 dev lo
ip addr add ` + service + `/32 dev lo
echo 1 > /proc/sys/net/ipv4/ip_forward
touch "$0/entered"
sleep infinity &
wait`

// machine is the node.
type machine struct {
	folder  string // its files
	kube    string // the programs of Kubernetes
	init    *exec.Cmd
	began   time.Time
	kubelet *exec.Cmd
}

func boot() (*machine, error) {
	kube, err := filepath.Abs(os.Getenv("KUBE"))
	if err != nil || os.Getenv("KUBE") == "" {
		return nil, errors.New("KUBE names no file: test/node/run.sh compiles it")
	}
	folder, err := os.MkdirTemp("", "lsnode")
	if err != nil {
		return nil, err
	}
	m := &machine{folder: folder, kube: kube, began: time.Now()}
	for _, step := range []func() error{m.enter, m.makeImages, m.makeGroups, m.startServer, m.startNode, m.startPostgres} {
		if err := step(); err != nil {
			m.keepLogs()
			return m, err
		}
	}
	m.say("the node is ready")
	return m, nil
}

func (m *machine) say(text string) {
	fmt.Printf("%6.1f s: %s\n", time.Since(m.began).Seconds(), text)
}

// enter makes the node's namespaces. When their first process ends, all in them is killed.
func (m *machine) enter() error {
	m.init = exec.Command("bash", "-c", enter, m.folder)
	m.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	m.init.Stderr = os.Stderr
	if err := m.init.Start(); err != nil {
		return err
	}
	return m.until("its mounts", func() error {
		_, err := os.Stat(filepath.Join(m.folder, "entered"))
		return err
	})
}

// makeGroups makes the group below which the kubelet works: in each hierarchy of cgroup v1, or in the one of v2.
func (m *machine) makeGroups() error {
	const all = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(all, "cgroup.controllers")); err == nil {
		controllers := []byte("+cpu +cpuset +memory +pids")
		return errors.Join(
			os.MkdirAll(filepath.Join(all, cgroup), 0o755),
			os.WriteFile(filepath.Join(all, "cgroup.subtree_control"), controllers, 0o644),
			os.WriteFile(filepath.Join(all, cgroup, "cgroup.subtree_control"), controllers, 0o644))
	}
	for _, name := range []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"} {
		if err := os.MkdirAll(filepath.Join(all, name, cgroup), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		of, err := os.ReadFile(filepath.Join(all, "cpuset", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(all, "cpuset", cgroup, name), of, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// startServer starts containerd, etcd and the API server, and loads the images.
func (m *machine) startServer() error {
	if err := m.inside("openssl", "genrsa", "-out", "/run/kube/sa.key", "2048").Run(); err != nil {
		return err
	}
	here := "http://127.0.0.1:2380"
	m.start("containerd", "containerd", "--config", abs("testdata/containerd.toml"))
	m.start("etcd", "etcd", "--data-dir", "/run/etcd", "--listen-client-urls", "http://127.0.0.1:2379",
		"--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", here,
		"--initial-advertise-peer-urls", here, "--initial-cluster", "default="+here)
	m.start("kube-apiserver", m.kube, "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0", "--secure-port=443", "--cert-dir=/run/kube", "--advertise-address="+address,
		"--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=/run/kube/sa.key",
		"--service-account-signing-key-file=/run/kube/sa.key", "--authorization-mode=Node,RBAC",
		"--token-auth-file="+abs("testdata/tokens.csv"), "--kubelet-preferred-address-types=InternalIP",
		"--enable-aggregator-routing=true", // so webhooks reach Services without kube-proxy
		"--allow-privileged",               // the volume plugin
		"--enable-admission-plugins=NodeRestriction")
	for _, image := range images {
		if err := m.until("image "+image.file, func() error {
			return m.inside("ctr", "-n", "k8s.io", "images", "import", filepath.Join(m.folder, image.file)).Run()
		}); err != nil {
			return err
		}
	}
	for _, user := range []string{"admin", "node1", "scheduler", "controllers"} {
		write := m.inside("tee", "/run/kube/"+user+".kubeconfig")
		write.Stdin = strings.NewReader(fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://`+service+`", certificate-authority: /run/kube/apiserver.crt}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, user))
		if err := write.Run(); err != nil {
			return err
		}
	}
	return m.until("the API server", func() error { return m.kubectl("get", "--raw", "/readyz").Run() })
}

// startNode starts the kubelet, the controllers and the scheduler.
func (m *machine) startNode() error {
	m.startKubelet()
	m.start("kube-controller-manager", m.kube, "kube-controller-manager", "--kubeconfig=/run/kube/controllers.kubeconfig",
		"--bind-address=127.0.0.1", "--cert-dir=/run/kube/controllers", "--leader-elect=false",
		"--service-account-private-key-file=/run/kube/sa.key", "--root-ca-file=/run/kube/apiserver.crt",
		"--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins", "--use-service-account-credentials=true")
	m.start("kube-scheduler", m.kube, "kube-scheduler", "--kubeconfig=/run/kube/scheduler.kubeconfig",
		"--bind-address=127.0.0.1", "--cert-dir=/run/kube/scheduler", "--leader-elect=false")
	return m.until("the node", func() error {
		err := m.kubectl("wait", "--for=condition=Ready", "node/node1", "--timeout=5s").Run()
		return errors.Join(err, m.kubectl("get", "serviceaccount", "default").Run())
	})
}

func (m *machine) startKubelet() {
	m.kubelet = m.start("kubelet", m.kube, "kubelet", "--config="+abs("testdata/kubelet.yaml"),
		"--kubeconfig=/run/kube/node1.kubeconfig", "--root-dir=/var/lib/kubelet", "--cert-dir=/run/kube/kubelet",
		"--hostname-override=node1", "--node-ip="+address, "--v=2")
}

// storeURL is the database's, for pods and for a sidecar beside them.
const storeURL = "postgres://locksidecar:secret@" + address + ":5432/postgres?sslmode=disable"

// startPostgres starts a PostgreSQL on the node's address.
func (m *machine) startPostgres() error {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return errors.New("PostgreSQL is not installed: test/node/run.sh installs it")
	}
	bin := filepath.Dir(found[len(found)-1])
	as := func(args ...string) []string {
		return append([]string{
			"setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "env", "-i",
			"-C", "/run/pg", "PATH=" + bin + ":/usr/bin:/bin", "HOME=/run/pg",
		}, args...)
	}
	for _, args := range [][]string{
		{"mkdir", "/run/pg"},
		{"bash", "-c", "echo secret > /run/pg/password; chown -R postgres:postgres /run/pg"},
		as("initdb", "-D", "/run/pg/data", "-U", "locksidecar", "--pwfile=/run/pg/password", "-A", "scram-sha-256",
			"-E", "UTF8", "--locale=C.UTF-8", "--no-sync"),
		{"bash", "-c", "echo host all all 10.0.0.0/8 scram-sha-256 >> /run/pg/data/pg_hba.conf"},
	} {
		if out, err := m.inside(args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", args, err, out)
		}
	}
	m.start("postgres", as("postgres", "-D", "/run/pg/data", "-k", "/run/pg", "-c", "listen_addresses="+address, "-c", "fsync=off")...)
	return m.until("PostgreSQL", func() error { return m.inside(filepath.Join(bin, "pg_isready"), "-h", address).Run() })
}

// inside is a command in the node's namespaces.
func (m *machine) inside(args ...string) *exec.Cmd {
	enter := []string{"-t", strconv.Itoa(m.init.Process.Pid), "-m", "-n", "-p", "-u", "-i", "--wd=" + abs(".")}
	return exec.Command("nsenter", append(enter, args...)...)
}

// kubectl is a command of the cluster's administrator.
func (m *machine) kubectl(args ...string) *exec.Cmd {
	return m.inside(append([]string{"env", "KUBECONFIG=/run/kube/admin.kubeconfig", "HOME=/run/kube", m.kube, "kubectl"}, args...)...)
}

// start starts a program of the node. Its output is its log.
func (m *machine) start(name string, args ...string) *exec.Cmd {
	cmd := m.inside(args...)
	log, err := os.OpenFile(filepath.Join(m.folder, "log", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		cmd.Stdout, cmd.Stderr = log, log
		err = cmd.Start()
		_ = log.Close()
	}
	if err != nil {
		panic(fmt.Sprintf("%s: %v", name, err)) // nothing works without it
	}
	go func() { _ = cmd.Wait() }()
	return cmd
}

// until tries something until it succeeds.
func (m *machine) until(what string, try func() error) error {
	limit, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := try()
		if err == nil {
			m.say(what + ": there")
			return nil
		}
		select {
		case <-limit.Done():
			return fmt.Errorf("%s: not within %s: %w", what, patience, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stop kills all of the node, and removes its files and groups.
func (m *machine) stop() {
	if m.init != nil && m.init.Process != nil {
		_ = m.init.Process.Kill()
		_ = m.init.Wait()
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + cgroup)
	groups = append(groups, "/sys/fs/cgroup/"+cgroup)
	for _, group := range groups {
		m.removeGroup(group)
	}
	if err := os.RemoveAll(m.folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// removeGroup removes a group when those below it are removed and its last process is dead.
func (m *machine) removeGroup(group string) {
	var all []string
	_ = filepath.WalkDir(group, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	for i := len(all) - 1; i >= 0; i-- {
		for range 100 {
			if err := syscall.Rmdir(all[i]); !errors.Is(err, syscall.EBUSY) {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// keepLogs copies the logs of the node's programs to where they stay.
func (m *machine) keepLogs() {
	kept, err := os.MkdirTemp("", "lsnode-log")
	if err != nil {
		return
	}
	_ = os.CopyFS(kept, os.DirFS(filepath.Join(m.folder, "log")))
	var state bytes.Buffer
	for _, args := range [][]string{{"get", "pods", "-A", "-o", "wide"}, {"get", "events", "-A"}, {"describe", "pods", "-A"}} {
		cmd := m.kubectl(args...)
		cmd.Stdout, cmd.Stderr = &state, &state
		_ = cmd.Run()
	}
	_ = os.WriteFile(filepath.Join(kept, "cluster.txt"), state.Bytes(), 0o644)
	fmt.Fprintln(os.Stderr, "the logs of the node's programs:", kept)
}

func abs(path string) string {
	found, err := filepath.Abs(path)
	if err != nil {
		panic(err)
	}
	return found
}
