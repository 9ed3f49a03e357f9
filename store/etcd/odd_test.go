package etcd_test

import (
	"context"
	"net"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// oddServer answers swaps in its own way.
type oddServer struct {
	oldServer
	pb.UnimplementedKVServer
	odd *pb.TxnResponse
}

func (o *oddServer) Txn(_ context.Context, txn *pb.TxnRequest) (*pb.TxnResponse, error) {
	if len(txn.Compare) > 0 || txn.Success[0].GetRequestTxn() != nil {
		return o.odd, nil
	}
	answer := &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: 8}, Succeeded: true}
	for range txn.Success {
		answer.Responses = append(answer.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{}}})
	}
	return answer, nil
}

// TestOddAnswersToSwaps: an answer that lacks what a transaction asks for is neither a success nor a failure. Its outcome is unknown.
func TestOddAnswersToSwaps(t *testing.T) {
	t.Parallel()
	header := &pb.ResponseHeader{Revision: 8}
	put := &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}}
	nested := func(of *pb.TxnResponse) *pb.ResponseOp {
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: of}}
	}
	done := nested(&pb.TxnResponse{Succeeded: true})
	for name, odd := range map[string]*pb.TxnResponse{
		"nothing":              {},
		"no revision":          {Succeeded: true},
		"an older revision":    {Header: &pb.ResponseHeader{Revision: 7}, Succeeded: true},
		"failed, no record":    {Header: header},
		"failed, a put":        {Header: header, Responses: []*pb.ResponseOp{put}},
		"failed, nested":       {Header: header, Responses: []*pb.ResponseOp{done, done}},
		"nested, none":         {Header: header, Responses: []*pb.ResponseOp{done, nested(&pb.TxnResponse{})}},
		"nested, one is a put": {Header: header, Responses: []*pb.ResponseOp{done, put}},
		"nested, too few":      {Header: header, Responses: []*pb.ResponseOp{done}},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server, answers := grpc.NewServer(), &oddServer{oldServer: oldServer{version: "3.6.0"}, odd: odd}
			pb.RegisterMaintenanceServer(server, answers)
			pb.RegisterKVServer(server, answers)
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(server.Stop)
			s := on(t, cluster)
			s.url.Host = listener.Addr().String()
			r := s.ready("one")
			for _, swaps := range [][]cas.Swap{{{Key: "ns/a"}}, {{Key: "ns/a"}, {Key: "ns/b"}}} {
				if done, err := r.Swap(r.Ctx, swaps); !store.OutcomeUnknown(err) {
					t.Errorf("%d swaps: %+v, %v", len(swaps), done, err)
				}
			}
		})
	}
}
