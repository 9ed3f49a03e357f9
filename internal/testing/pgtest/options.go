package pgtest

// Option changes how a cluster is set up.
type Option func(*settings)

type settings struct {
	tcp    bool
	server []string // name=value, given to postgres with -c
	parent string   // of the cluster's folder
	env    []string // name=value, of the server
	files  []file   // in the data's folder

	prepare func(url string) error
	role    string
}

type file struct {
	name    string
	content []byte
}

// WithTCP makes the server listen on a free port of 127.0.0.1 too, and URLs contain this port.
func WithTCP() Option {
	return func(s *settings) { s.tcp = true }
}

// WithoutFsync makes tests faster at the cost of durability. It must not be used for benchmarks or
// tests that kill the server. It implies InMemory.
func WithoutFsync() Option {
	return func(s *settings) {
		InMemory()(s)
		WithSetting("fsync", "off")(s)
	}
}

// InMemory puts the cluster's folder into memory if there is enough space. Files and fsync are
// cheap there. Written data survives a kill of the server. It must not be used for benchmarks.
func InMemory() Option {
	return func(s *settings) { s.parent = Memory() }
}

// WithSetting sets one of the server's settings, such as max_connections.
func WithSetting(name, value string) Option {
	return func(s *settings) { s.server = append(s.server, name+"="+value) }
}

// WithParent puts the cluster's folder into another folder than the temporary one, such as a small
// file system that a test fills.
func WithParent(folder string) Option {
	return func(s *settings) { s.parent = folder }
}

// WithEnv gives the server variables, as NAME=value.
func WithEnv(variables ...string) Option {
	return func(s *settings) { s.env = append(s.env, variables...) }
}

// WithFile puts a file among the server's data before it starts, such as pg_hba.conf, in
// place of the one that trusts everybody, or server.crt.
func WithFile(name string, content []byte) Option {
	return func(s *settings) { s.files = append(s.files, file{name, content}) }
}

// WithTemplate makes NewDatabase return copies of a database that prepare has been at work
// in, once, as the superuser; their URLs are a role's.
func WithTemplate(role string, prepare func(url string) error) Option {
	return func(s *settings) { s.role, s.prepare = role, prepare }
}
