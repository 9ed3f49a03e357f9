// Mutants breaks the rules of the sidecar, one after the other, and sees a test turn red
// each time. Run it from the top of the repository: make mutants.
//
// Each *.patch of this folder breaks one rule. Its head says which, where the rule is
// from, and the test that must turn red:
//
//	# Rule: nothing is told before the commit.
//	# From: promise 4, trap rows before the commit
//	# Test: ./store/postgres TestFailedCommitIsNotAnswered/one
//
// The test of a client in another language is a file and a function in it:
//
//	# Test: ./clients/ruby/test/tcp_test.rb test_mistakes
//	# Test: ./clients/rust/src/transport.rs no_connection_after_a_call_was_sent
//
// The program works on a copy of the repository, as it lies there with all that is not
// committed. It sees that the tests are green as things are; then it applies each patch,
// compiles, and runs the one test. A test that fails has bitten, and so has one that
// hangs until its own time limit. Everything else ends in an error: a mutant that
// survives, one that does not compile, and a patch that does not apply any more, which is
// to be mended. The tests of this folder see to it that none is forgotten: each patch
// applies, and each test that is named exists.
//
// docs/proofs.md says which tests stand for which promise and trap.
package main
