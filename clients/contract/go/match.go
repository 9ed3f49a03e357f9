package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// members are those of a JSON object.
type members = map[string]any

// plain makes JSON values of any value: numbers are float64.
func plain(value any) any {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	var out any
	if err := json.Unmarshal(text, &out); err != nil {
		panic(err)
	}
	return out
}

// fillIn replaces each $name by what was saved, and each {$long: n} by a text of n letters.
func fillIn(value any, saved members) (any, error) {
	switch v := value.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			var err error
			if out[i], err = fillIn(v[i], saved); err != nil {
				return nil, err
			}
		}
		return out, nil
	case members:
		if n, is := v["$long"].(float64); is && len(v) == 1 {
			return strings.Repeat("a", int(n)), nil
		}
		out := members{}
		for name := range v {
			var err error
			if out[name], err = fillIn(v[name], saved); err != nil {
				return nil, err
			}
		}
		return out, nil
	case string:
		name, is := strings.CutPrefix(v, "$")
		if !is {
			return v, nil
		}
		got, known := saved[name]
		if !known {
			return nil, fmt.Errorf("nothing was saved as %s; saved: %v", v, slices.Sorted(maps.Keys(saved)))
		}
		return got, nil
	}
	return value, nil
}

// difference is what is wrong with got, or nil.
func difference(want, got any, at string) error {
	switch w := want.(type) {
	case members:
		for name, operand := range w {
			if strings.HasPrefix(name, "$") {
				return judge(name, operand, got, at, len(w))
			}
		}
		g, is := got.(members)
		if !is {
			return fmt.Errorf("%s is %s; it must have %v", at, show(got), slices.Sorted(maps.Keys(w)))
		}
		for name := range w {
			if err := difference(w[name], g[name], at+"."+name); err != nil {
				return err
			}
		}
		return nil
	case []any:
		g, is := got.([]any)
		if !is || len(g) != len(w) {
			return fmt.Errorf("%s is %s; it must be a list of %d", at, show(got), len(w))
		}
		for i := range w {
			if err := difference(w[i], g[i], fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
		return nil
	}
	if want != got {
		return fmt.Errorf("%s is %s; it must be %s", at, show(got), show(want))
	}
	return nil
}

func judge(operator string, operand, got any, at string, alone int) error {
	if alone != 1 {
		return fmt.Errorf("%s stands alone", operator)
	}
	number, isNumber := got.(float64)
	text, isText := got.(string)
	bound, _ := operand.(float64)
	part, _ := operand.(string)
	matches, known := map[string]bool{
		"$gt": isNumber && number > bound, "$ge": isNumber && number >= bound, "$lt": isNumber && number < bound, "$le": isNumber && number <= bound,
		"$has": isText && strings.Contains(text, part), "$is": reflect.DeepEqual(got, operand), "$any": got != nil,
	}[operator]
	switch {
	case !known:
		return fmt.Errorf("there is no operator %s", operator)
	case !matches:
		return fmt.Errorf("%s is %s; it must be %s %s", at, show(got), operator, show(operand))
	}
	return nil
}

func show(value any) string {
	text, _ := json.Marshal(value) //nolint:errchkjson // it was JSON
	return string(text)
}
