//! Programs held against statements: what a test may do, and what a program may not get away with.

use plimsoll_reward::{Case, Prompt, RewardSpec, Rewards};
use serde_json::json;
use std::sync::Arc;

/// Scores programs, each with its own tests.
fn scores(pairs: &[(&str, &str)]) -> Option<Vec<f32>> {
    plimsoll_reward::keep_with(env!("CARGO_BIN_EXE_plimsoll-reward-keeper").into());
    if !std::process::Command::new("python3").arg("--version").output().is_ok_and(|out| out.status.success())
    {
        eprintln!("SKIPPED: python3 is not installed");
        return None;
    }
    let spec = RewardSpec { timeout_ms: 20_000, ..RewardSpec::of_kind("code") };
    let mut rewards = Rewards::new(&[spec]).expect("it starts");
    let cases = pairs.iter().map(|(program, tests)| {
        let columns = json!({ "ground_truth": tests }).as_object().expect("an object").clone();
        let prompt = Arc::new(Prompt { columns: columns.into(), ..Prompt::default() });
        let response = format!("```python\n{program}\n```");
        Case { prompt, response, completion: None, response_ids: Vec::new(), max_new_tokens: 8, ended: true }
    });
    let scored = rewards.score(cases.collect()).expect("what a program does wrong is no error");
    Some(scored.into_iter().map(|one| one.total.expect("a score")).collect())
}

fn check(pairs: &[(&str, &str)], expect: f32) {
    let Some(scores) = scores(pairs) else { return };
    for ((program, tests), score) in pairs.iter().zip(scores) {
        assert_eq!(score, expect, "{program}\n--- {tests}");
    }
}

#[test]
fn right_programs_pass_tests_that_run_in_another_process() {
    check(
        &[
            ("def f(x): return x + 2", "assert f(2) == 4"),
            ("def f(x): return 4.0000000001", "assert abs(f(2) - 4) < 1e-6"),
            (
                "def f(x): return {1: [2, (3,)], 'a': {1, 2}, None: b'x'}",
                "assert f(1) == {1: [2, (3,)], 'a': {1, 2}, None: b'x'}",
            ),
            ("def f(x): return 10 ** 5000", "assert f(1) == 10 ** 5000"),
            ("def f(x): return float('nan')", "import math\nassert math.isnan(f(1))"),
            ("def f(x): return x is None", "assert f(None) is True"),
            ("def f(n):\n  for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2] and next(f(1)) == 0"),
            ("def f(l): l.sort()", "l = [[3, 1], [2]]\nf(l)\nf(l[1])\nassert l == [[2], [1, 3]]"),
            ("def f(l): l['a'].append(1)", "d = {'a': []}\nf(d)\nassert d == {'a': [1]}"),
            (
                "class Solution:\n  def two(self, nums, target): return [0, 1]",
                "assert Solution().two(nums=[1, 2], target=3) == [0, 1]",
            ),
            (
                "class S:\n  def __init__(s): s.l = []\n  def push(s, x): s.l.append(x)\n  def __len__(s): return len(s.l)",
                "s = S()\ns.push(1)\ns.push(2)\nassert len(s) == 2 and s.l == [1, 2] and isinstance(s, S)",
            ),
            (
                "def has(x): return x > 0",
                "def check(candidate):\n  for i in range(1, 300): assert candidate(i) == True\ncheck(has)",
            ),
            (
                "def ap(f, x): return f(x)",
                "assert ap(lambda y: ap(lambda z: z + 1, y) * 2, 4) == 10 and ap(abs, -3) == 3",
            ),
            (
                "class E(ValueError): pass\ndef f(x):\n  if x: raise E('bad')\n  return 1 / x",
                "for x, kind in (1, E), (1, ValueError), (0, ZeroDivisionError):\n  try: f(x)\n  except kind as e: assert str(e) in ('bad', 'division by zero')\n  else: assert False",
            ),
            (
                "from collections import namedtuple, deque, Counter\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)\ndef g(p): return p.x\ndef h(): return deque([1]), Counter('aa')",
                "from collections import deque\nassert f() == (1, 2) and f().y == 2 and g(f()) == 1 and h() == (deque([1]), {'a': 2})",
            ),
            (
                "from enum import Enum\nclass C(Enum):\n  R = 1\n  G = 2\ndef f(): return C.R",
                "assert f() == C.R and f() != C.G and f().value == 1",
            ),
            (
                "class V:\n  def __init__(s, x): s.x = x\n  def __add__(s, o): return V(s.x + o.x)\n  def __mul__(s, k): return V(s.x * k)\n  def __eq__(s, o): return s.x == o.x\n  def __repr__(s): return f'V({s.x})'",
                "assert V(1) + V(2) == V(3) and V(2) * 3 == V(6) and repr(V(1)) == 'V(1)' and V(1) != V(2)",
            ),
            (
                "import math\nfrom typing import List\nM = 7\ndef f(x: List[int]): return math.prod(x) % M",
                "assert f([2, 4]) == 8 % M and math.pi > 3",
            ),
            ("print('unread')\ndef f(): print('more')", "assert f() is None"),
            // These look at more than values, or hand over objects of their own, and run in the program's process.
            (
                "def f(): print('said')",
                "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out): f()\nassert out.getvalue() == 'said\\n'",
            ),
            ("def f(node): return node.value", "class Node:\n  value = 3\nassert f(Node()) == 3"),
            ("def f(x): return x", "x = []\nassert f(x) is x"),
        ],
        1.0,
    );
}

#[test]
fn a_program_passes_no_test_by_a_trick() {
    check(
        &[
            ("def f(x): return x + 1", "assert f(2) == 4"),
            ("class A:\n  def __eq__(s, o): return True\ndef f(x): return A()", "assert f(2) == 4"),
            (
                "class A:\n  def __eq__(s, o): return True\n  __ne__ = lambda s, o: False\ndef f(x): return [A()]",
                "assert not f(2) != [4]",
            ),
            (
                "class A(int):\n  def __eq__(s, o): return True\n  __hash__ = int.__hash__\ndef f(x): return A()",
                "assert f(2) == 4",
            ),
            (
                "class A:\n  def __eq__(s, o): return True\n  def __hash__(s): return hash(4)\ndef f(x): return A()",
                "assert f(2) in {4}",
            ),
            (
                "class A:\n  def __sub__(s, o): return 0.0\n  def __abs__(s): return 0.0\n  def __lt__(s, o): return True\ndef f(x): return A()",
                "assert abs(f(2) - 4) < 1e-6",
            ),
            (
                "class A:\n  def __round__(s, n): return 4\n  def __le__(s, o): return True\n  def __ge__(s, o): return True\ndef f(x): return A()",
                "assert 4 <= f(2) <= 4",
            ),
            (
                "import os\ndef f(x):\n  s = ''.join(open(a).read() for a in os.listdir('.'))\n  return 8 // 2 if '==' + ' 4' in s else 5",
                "assert f(2) == 4",
            ),
            (
                "import sys\ndef f(x):\n  frame = sys._getframe()\n  while frame := frame.f_back:\n    for c in frame.f_code.co_consts:\n      if type(c) is int and c > 40: return c\n  return 0",
                "assert f(2) == 44",
            ),
            (
                "import gc\ndef f(x):\n  return max((v for o in gc.get_objects() for v in (o if type(o) is list else []) if type(v) is int), default=0)",
                "e = [987654321]\nassert f(2) == e[0]",
            ),
            ("import sys; sys.exit(0)", "assert f(1) == 2"),
            ("import os\ndef f(x): os._exit(0)", "assert f(1) == 2"),
            ("def f(x): raise SystemExit(0)", "assert f(1) == 2"),
            (
                "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): return 0",
                "assert f(2) == 4",
            ),
            ("import builtins\nbuiltins.AssertionError = SystemExit\ndef f(x): return 0", "assert f(2) == 4"),
            ("import sys\nsys.excepthook = lambda *a: None\ndef f(x): return 0", "assert f(2) == 4"),
            (
                "import os\ndef f(x):\n  for d in range(3, 20):\n    try: os.write(d, b'{\"holds\": true}\\n')\n    except OSError: pass\n  return 0",
                "assert f(2) == 4",
            ),
            (
                "import os\ndef f(x):\n  for d in range(3, 20):\n    try: os.write(d, b'{\"inside\": \"\"}\\n')\n    except OSError: pass\nclass A:\n  def __eq__(s, o): return True\n",
                "assert f(2) == 4",
            ),
            (
                "import threading, os, time\nthreading.Thread(target=lambda: (time.sleep(.05), os._exit(0))).start()\ndef f(x): time.sleep(1)",
                "assert f(1) == 2",
            ),
            ("import os\ndef f(x): return 0\nif os.fork(): os._exit(0)", "assert f(2) == 4"),
            ("def f(x): return 0\n'''", "assert f(2) == 4"),
            ("def f(x): return 'x' * (1 << 21)", "assert f(2) == 'x' * (1 << 21)"),
            ("def f(x):\n  l = []\n  l.append(l)\n  return l", "assert f(2) == [4]"),
            ("def f(x, y): return g(x)\ndef g(x): return x(x)", "assert f(lambda h: h(h), 1) == 1"),
        ],
        0.0,
    );
}

#[test]
fn tests_that_die_cost_only_their_own_program() {
    let loops = "while True: pass";
    let eats = "x = 'x' * (1 << 30)";
    let good = ("def f(x): return x", "assert f(1) == 1");
    let pairs = [good, ("f = 1", eats), good, ("f = 1", "import os"), good];
    let Some(found) = scores(&pairs) else { return };
    assert_eq!(found, [1.0, 0.0, 1.0, 1.0, 1.0]);
    let spec = RewardSpec { timeout_ms: 1000, ..RewardSpec::of_kind("code") };
    let mut rewards = Rewards::new(&[spec]).expect("it starts");
    let prompt = |tests: &str| {
        let columns = json!({ "ground_truth": tests }).as_object().expect("an object").clone();
        Arc::new(Prompt { columns: columns.into(), ..Prompt::default() })
    };
    let case = |tests: &str| Case {
        prompt: prompt(tests),
        response: "```\ndef f(x): return x\n```".into(),
        completion: None,
        response_ids: Vec::new(),
        max_new_tokens: 8,
        ended: true,
    };
    let scored = rewards.score(vec![case(loops), case("assert f(1) == 1")]).expect("no error");
    assert_eq!(scored.iter().map(|one| one.total).collect::<Vec<_>>(), [Some(0.0), Some(1.0)]);
}
