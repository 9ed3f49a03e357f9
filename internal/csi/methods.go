//go:build linux

package csi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/locksidecar/locksidecar/internal/csi/csipb"
)

// The services of CSI that a kubelet calls. It is told that a method which is missing here is not implemented.
const (
	identity = "csi.v1.Identity"
	node     = "csi.v1.Node"
)

func register(server *grpc.Server, s *service) {
	server.RegisterService(&grpc.ServiceDesc{ServiceName: identity, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
		method(identity, "GetPluginInfo", s.pluginInfo),
		method(identity, "GetPluginCapabilities", nothing),
		method(identity, "Probe", nothing),
	}}, s)
	server.RegisterService(&grpc.ServiceDesc{ServiceName: node, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
		method(node, "NodeGetInfo", s.nodeInfo),
		method(node, "NodeGetCapabilities", nothing),
		method(node, "NodePublishVolume", s.publishVolume),
		method(node, "NodeUnpublishVolume", s.unpublishVolume),
	}}, s)
}

// nothing answers with an empty message: the plugin has no capabilities beyond a publish, and is ready while it serves.
func nothing(context.Context, *pb.Nothing) (*pb.Nothing, error) { return &pb.Nothing{}, nil }

// method describes a method whose request is a *Request.
func method[Request any, R interface {
	*Request
	proto.Message
}, Answer proto.Message](service, name string, f func(context.Context, R) (Answer, error)) grpc.MethodDesc {
	handle := func(ctx context.Context, req any) (any, error) { return f(ctx, req.(R)) }
	return grpc.MethodDesc{MethodName: name, Handler: func(server any, ctx context.Context, decode func(any) error, through grpc.UnaryServerInterceptor) (any, error) {
		req := R(new(Request))
		if err := decode(req); err != nil {
			return nil, err
		}
		return through(ctx, req, &grpc.UnaryServerInfo{Server: server, FullMethod: "/" + service + "/" + name}, handle)
	}}
}
