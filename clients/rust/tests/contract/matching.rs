use std::collections::HashMap;

use serde_json::{Map, Value};

/// Replaces each `$name` by what was saved, and each `{$long: n}` by a text of n letters.
pub fn fill_in(value: &Value, saved: &HashMap<String, Value>) -> Result<Value, String> {
    Ok(match value {
        Value::Array(items) => Value::Array(items.iter().map(|item| fill_in(item, saved)).collect::<Result<_, _>>()?),
        Value::Object(members) => {
            if let (Some(n), 1) = (members.get("$long").and_then(Value::as_u64), members.len()) {
                return Ok("a".repeat(n as usize).into());
            }
            Value::Object(members.iter().map(|(name, value)| Ok((name.clone(), fill_in(value, saved)?))).collect::<Result<Map<_, _>, String>>()?)
        }
        Value::String(text) => match text.strip_prefix('$') {
            Some(name) => saved.get(name).cloned().ok_or_else(|| format!("nothing was saved as {text}; saved: {:?}", saved.keys()))?,
            None => value.clone(),
        },
        _ => value.clone(),
    })
}

/// What is wrong with the result.
pub fn difference(want: &Value, got: &Value, at: &str) -> Result<(), String> {
    match want {
        Value::Object(members) => {
            if let Some((operator, operand)) = members.iter().find(|(name, _)| name.starts_with('$')) {
                return judge(operator, operand, got, at, members.len());
            }
            let Value::Object(has) = got else { return Err(format!("{at} is {got}; it must have {:?}", members.keys())) };
            for (name, want) in members {
                difference(want, has.get(name).unwrap_or(&Value::Null), &format!("{at}.{name}"))?;
            }
            Ok(())
        }
        Value::Array(items) => match got {
            Value::Array(has) if has.len() == items.len() => {
                items.iter().zip(has).enumerate().try_for_each(|(i, (want, got))| difference(want, got, &format!("{at}[{i}]")))
            }
            _ => Err(format!("{at} is {got}; it must be a list of {}", items.len())),
        },
        _ if equal(want, got) => Ok(()),
        _ => Err(format!("{at} is {got}; it must be {want}")),
    }
}

fn equal(want: &Value, got: &Value) -> bool {
    match (want, got) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        _ => want == got,
    }
}

fn judge(operator: &str, operand: &Value, got: &Value, at: &str, alone: usize) -> Result<(), String> {
    if alone != 1 {
        return Err(format!("{operator} stands alone"));
    }
    let compare = |is: fn(&f64, &f64) -> bool| matches!((got.as_f64(), operand.as_f64()), (Some(got), Some(bound)) if is(&got, &bound));
    let matches = match operator {
        "$gt" => compare(f64::gt),
        "$ge" => compare(f64::ge),
        "$lt" => compare(f64::lt),
        "$le" => compare(f64::le),
        "$has" => matches!((got, operand), (Value::String(text), Value::String(part)) if text.contains(part)),
        "$is" => got == operand,
        "$any" => !got.is_null(),
        _ => return Err(format!("there is no operator {operator}")),
    };
    if matches {
        Ok(())
    } else {
        Err(format!("{at} is {got}; it must be {operator} {operand}"))
    }
}
