package k8s

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/environment"
)

// TestValidationNeedsNoNewCEL compiles validate.yaml with what Kubernetes 1.30 takes: the
// CEL of the release before it, so that it can be rolled back.
func TestValidationNeedsNoNewCEL(t *testing.T) {
	var policy admissionregistrationv1.ValidatingAdmissionPolicy
	converter := runtime.DefaultUnstructuredConverter
	if err := converter.FromUnstructuredWithValidation(deployed(t, "injector/validate.yaml")[0].Object, &policy, true); err != nil {
		t.Fatal(err)
	}
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 29)))
	if err != nil {
		t.Fatal(err)
	}
	declared := cel.OptionalVariableDeclarations{}
	for _, v := range policy.Spec.Variables {
		result := compiler.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, declared, environment.NewExpressions)
		if result.Error != nil {
			t.Errorf("variable %s: %v", v.Name, result.Error)
		}
	}
	for i, v := range policy.Spec.Validations {
		result := compiler.CompileCELExpression(&validating.ValidationCondition{Expression: v.Expression}, declared, environment.NewExpressions)
		if result.Error != nil {
			t.Errorf("validation %d: %v", i, result.Error)
		}
		if v.MessageExpression == "" {
			continue
		}
		result = compiler.CompileCELExpression(&validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}, declared, environment.NewExpressions)
		if result.Error != nil {
			t.Errorf("message of validation %d: %v", i, result.Error)
		}
	}
}
