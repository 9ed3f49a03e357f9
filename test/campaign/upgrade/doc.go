// Package upgrade rolls sidecars from one release to the next and back, on one database,
// while clients fight for locks, and judges what the clients were told.
//
//   - The previous release is built from the tag in the file PREVIOUS, as `release/freeze.sh`
//     sets it. It says none until there is a release: then it is this tree.
//   - The next one is this tree with migrations that are not there yet (testdata), so that
//     there is always something to migrate. They do what a release may do: docs/operate.md.
//
// Both are built as they are released. test/campaign/run.sh upgrade rolls to and fro for longer.
//
// Proves: trap migration
package upgrade
