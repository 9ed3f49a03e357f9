package inject

import (
	"errors"
	"fmt"
	"strings"
)

// foreign are the names of containers that well-known injectors add. Another injector must run after this one;
// then its containers are not in ContainersAnnotation.
var foreign = matcher(`^(istio-(proxy|init|validation)|linkerd-(proxy|init|network-validator|debug)|vault-agent(-init)?|` +
	`kuma-(sidecar|init|validation)|consul-(dataplane|connect-inject-init)|daprd|cloud-sql-proxy)$`)

// ownContainers are the containers that get the socket by default: the pod's own, without sidecars.
func ownContainers(spec object) ([]string, error) {
	var names []string
	all := apps(spec)
	for _, a := range all {
		name := a.name()
		if name == "" || strings.Contains(name, ",") {
			return nil, fmt.Errorf("%s has no proper name", a.path)
		}
		native := a.init && a.object["restartPolicy"] == "Always"
		if !native && !foreign.MatchString(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 && len(all) > 0 {
		return nil, errors.New("the pod has no container but sidecars: name those that get the socket with the annotation " + ContainersAnnotation)
	}
	return names, nil
}
