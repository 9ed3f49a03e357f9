//go:build !profile

package main

func profiled(program func() error) error { return program() }
