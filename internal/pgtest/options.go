package pgtest

// Option changes how a cluster is set up.
type Option func(*settings)

type settings struct {
	tcp    bool
	server []string // name=value, given to postgres with -c
	parent string   // of the cluster's folder
	env    []string // name=value, of the server
}

// WithTCP makes the server listen on a free port of 127.0.0.1 too, and URLs use it.
func WithTCP() Option {
	return func(s *settings) { s.tcp = true }
}

// WithoutFsync spares tests of plain correctness the time that durability costs.
// Never for benchmarks, nor for tests that kill the server.
func WithoutFsync() Option {
	return WithSetting("fsync", "off")
}

// WithSetting sets one of the server's settings, such as max_connections.
func WithSetting(name, value string) Option {
	return func(s *settings) { s.server = append(s.server, name+"="+value) }
}

// WithParent puts the cluster's folder into another than the system's temporary one,
// such as a small file system that a test fills.
func WithParent(folder string) Option {
	return func(s *settings) { s.parent = folder }
}

// WithEnv gives the server a variable, such as LD_PRELOAD=….
func WithEnv(nameAndValue string) Option {
	return func(s *settings) { s.env = append(s.env, nameAndValue) }
}
