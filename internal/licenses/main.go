// Command licenses writes the licences of everything that is linked into locksidecar to its output: one text for all
// platforms of a release. It fails if a module has no licence, or one that is not allowed. It asks no network.
//
//	go run ./internal/licenses > THIRD_PARTY_LICENSES
//	go run ./internal/licenses -image > LICENSES.gz # compressed, behind locksidecar's own licence
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// allowed maps each allowed licence to a phrase of its text.
var allowed = map[string]string{
	"Apache-2.0": "Apache License Version 2.0, January 2004",
	"BSD":        "Redistribution and use in source and binary forms, with or without modification, are permitted",
	"ISC":        "Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted",
	"MIT":        "Permission is hereby granted, free of charge, to any person obtaining a copy",
	"MPL-2.0":    "Mozilla Public License, version 2.0",
}

// forbidden are phrases of other licences, and of conditions that are added to allowed ones. The MPL names the GNU licences,
// but not in capitals.
var forbidden = []string{
	"GNU GENERAL PUBLIC LICENSE", "GNU LESSER GENERAL PUBLIC LICENSE", "GNU AFFERO GENERAL PUBLIC LICENSE",
	"Server Side Public License", "Business Source License", "Commons Clause", "for Good, not Evil",
}

var (
	licenceFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|copyright)`)
	noticeFile  = regexp.MustCompile(`(?i)^(notice|patents)`)
)

func main() {
	log.SetFlags(0)
	image := flag.Bool("image", false, "write locksidecar's own licence, too, and compress all")
	flag.Parse()
	modules, err := linked(context.Background())
	if err != nil {
		log.Fatal("licenses: ", err)
	}
	text, err := texts(modules)
	if err != nil {
		log.Fatal("licenses: ", err)
	}
	if *image {
		text, err = packed(text)
	}
	if err == nil {
		_, err = os.Stdout.Write(text)
	}
	if err != nil {
		log.Fatal("licenses: ", err)
	}
}

// packed is the file of the image, where each byte is pulled by every node. The same text gives the same bytes.
func packed(text []byte) ([]byte, error) {
	own, err := os.ReadFile("LICENSE")
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = compressed.Write(slices.Concat(own, []byte("\n"), text))
	err = errors.Join(err, compressed.Close())
	return out.Bytes(), err
}

// module is a module, with the folders of its linked packages.
type module struct {
	name    string // with its version
	folder  string
	folders map[string]bool
}

// linked returns the modules of all platforms of a release, and Go itself.
func linked(ctx context.Context) (map[string]module, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	root := strings.TrimSpace(string(out))
	modules := map[string]module{root: {name: "the Go standard library, " + runtime.Version(), folder: root, folders: map[string]bool{root: true}}}
	for _, platform := range []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"} {
		system, arch, _ := strings.Cut(platform, "/")
		list := exec.CommandContext(ctx, "go", "list", "-deps", "-tags", "grpcnotrace", "-f",
			`{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{"\t"}}{{.Dir}}{{"\t"}}{{$.Dir}}{{end}}{{end}}`, "./cmd/locksidecar")
		list.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0")
		var said bytes.Buffer
		list.Stderr = &said
		out, err := list.Output()
		if err != nil {
			return nil, fmt.Errorf("go list: %w\n%s", err, &said)
		}
		for line := range strings.Lines(string(out)) {
			parts := strings.Split(strings.TrimSpace(line), "\t")
			if len(parts) != 3 {
				continue
			}
			m, known := modules[parts[0]]
			if !known {
				m = module{name: parts[0], folder: parts[1], folders: map[string]bool{}}
				modules[m.name] = m
			}
			m.folders[parts[2]] = true
		}
	}
	return modules, nil
}

// texts returns each text once, behind the modules that it belongs to.
func texts(modules map[string]module) ([]byte, error) {
	type section struct{ kind, text string }
	owners := map[section][]string{}
	var problems []error
	for _, m := range modules {
		licences := 0
		for _, file := range m.files() {
			content, err := os.ReadFile(file) //nolint:gosec // a file of a linked module
			if err != nil {
				return nil, err
			}
			kind := "notice"
			if licenceFile.MatchString(filepath.Base(file)) {
				licences++
				if kind, err = kindOf(string(content)); err != nil {
					problems = append(problems, fmt.Errorf("%s: %s: %w", m.name, filepath.Base(file), err))
				}
			}
			s := section{kind, strings.TrimSpace(string(content))}
			if !slices.Contains(owners[s], m.name) {
				owners[s] = append(owners[s], m.name)
			}
		}
		if licences == 0 {
			problems = append(problems, fmt.Errorf("%s has no licence", m.name))
		}
	}
	var sections []string
	for s, names := range owners {
		slices.Sort(names)
		sections = append(sections, fmt.Sprintf("%s\n\n[%s]\n\n%s\n", strings.Join(names, "\n"), s.kind, s.text))
	}
	slices.Sort(sections)
	rule := "\n" + strings.Repeat("=", 100) + "\n\n"
	head := "locksidecar contains the following software. Each text stands behind the names of what it belongs to.\n"
	return []byte(head + rule + strings.Join(sections, rule)), errors.Join(problems...)
}

// files returns the files of licences and notices that lie between the module's folder and its linked packages.
func (m module) files() (files []string) {
	seen := map[string]bool{}
	for folder := range m.folders {
		for ; !seen[folder]; folder = filepath.Dir(folder) {
			seen[folder] = true
			entries, _ := os.ReadDir(folder) // a folder without readable files has no licence, which is found later
			for _, entry := range entries {
				name := entry.Name()
				if entry.Type().IsRegular() && filepath.Ext(name) != ".go" && (licenceFile.MatchString(name) || noticeFile.MatchString(name)) {
					files = append(files, filepath.Join(folder, name))
				}
			}
			if folder == m.folder {
				break
			}
		}
	}
	return files
}

// kindOf names the licences of a text, all of which must be allowed.
func kindOf(text string) (string, error) {
	text = strings.Join(strings.Fields(text), " ")
	for _, phrase := range forbidden {
		if strings.Contains(text, phrase) {
			return "", fmt.Errorf("the text has %q, which is not allowed", phrase)
		}
	}
	plain := func(text string) string { return strings.ToLower(strings.ReplaceAll(text, ",", "")) }
	var kinds []string
	for kind, phrase := range allowed {
		if strings.Contains(plain(text), plain(phrase)) {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) == 0 {
		return "", errors.New("the licence is none of the allowed ones, or its text is not known")
	}
	slices.Sort(kinds)
	return strings.Join(kinds, " and "), nil
}
