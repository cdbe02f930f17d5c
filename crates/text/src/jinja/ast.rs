//! A parsed template: statements, and expressions with their line and depth.

/// A template's statements in order.
pub(super) type Block = Vec<Statement>;

#[derive(Debug)]
pub(super) enum Statement {
    Text(Box<str>),
    /// `{{ expression }}`
    Emit(Node),
    /// `{% do expression %}`
    Do(Node),
    /// `if` and each `elif` with its block, then `else`.
    If(Vec<(Node, Block)>, Block),
    For(Box<For>),
    /// `{% set target = expression %}`
    Set(Target, Node),
    /// `{% set name %}...{% endset %}`, with the filters to apply.
    SetBlock(Target, Vec<FilterCall>, Block),
    With(Vec<(Target, Node)>, Block),
    Filter(Vec<FilterCall>, Block),
    Macro(Box<Macro>),
    /// `{% call(parameters) macro(...) %}...{% endcall %}`: the call, and its block as a macro without a name.
    CallBlock(Node, Box<Macro>),
    /// `{% generation %}...{% endgeneration %}`: the assistant's own text.
    Generation(Block),
    Break(u32),
    Continue(u32),
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) over: Node,
    /// `for ... if condition`
    pub(super) condition: Option<Node>,
    pub(super) body: Block,
    pub(super) otherwise: Block,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Box<str>,
    /// Each parameter with its default.
    pub(super) parameters: Vec<(Box<str>, Option<Node>)>,
    pub(super) body: Block,
}

/// Says what an assignment writes.
#[derive(Debug)]
pub(super) enum Target {
    Name(Box<str>),
    Field(Box<str>, Box<str>),
    Several(Vec<Target>),
}

/// A filter with its arguments; what it applies to comes from elsewhere.
#[derive(Debug)]
pub(super) struct FilterCall {
    pub(super) line: u32,
    pub(super) name: Box<str>,
    pub(super) arguments: Arguments,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: u32,
    /// Levels of the tree below it, itself included.
    pub(super) depth: usize,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Box<str>),
    Name(Box<str>),
    List(Vec<Node>),
    Tuple(Vec<Node>),
    Dict(Vec<(Node, Node)>),
    /// `value.name`
    Attribute(Box<Node>, Box<str>),
    /// `value[index]`
    Item(Box<Node>, Box<Node>),
    /// `value[start:stop:step]`
    Slice(Box<Node>, Box<[Option<Node>; 3]>),
    Call(Box<Node>, Arguments),
    Filter(Box<Node>, FilterCall),
    /// `value is name(arguments)`
    Test(Box<Node>, FilterCall),
    Not(Box<Node>),
    Negative(Box<Node>),
    Positive(Box<Node>),
    Binary(Binary, Box<Node>, Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    /// `a < b <= c`
    Compare(Box<Node>, Vec<(Comparison, Node)>),
    /// `yes if test else no`
    Choice(Box<[Node; 2]>, Option<Box<Node>>),
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Node>,
    pub(super) named: Vec<(Box<str>, Node)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
    Concatenate,
}

impl Binary {
    /// Returns the operator as templates write it.
    pub(super) fn sign(self) -> &'static str {
        match self {
            Binary::Add => "+",
            Binary::Subtract => "-",
            Binary::Multiply => "*",
            Binary::Divide => "/",
            Binary::FloorDivide => "//",
            Binary::Remainder => "%",
            Binary::Power => "**",
            Binary::Concatenate => "~",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

impl Arguments {
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.positional.iter().chain(self.named.iter().map(|(_, node)| node))
    }
}

impl Kind {
    /// Returns the depth of the deepest child.
    pub(super) fn children_depth(&self) -> usize {
        fn deepest<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> usize {
            nodes.into_iter().map(|node| node.depth).max().unwrap_or(0)
        }
        match self {
            Kind::None | Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) | Kind::Text(_) | Kind::Name(_) => 0,
            Kind::List(items) | Kind::Tuple(items) => deepest(items),
            Kind::Dict(pairs) => deepest(pairs.iter().flat_map(|(key, value)| [key, value])),
            Kind::Attribute(value, _) => value.depth,
            Kind::Not(value) | Kind::Negative(value) | Kind::Positive(value) => value.depth,
            Kind::Item(value, index) => value.depth.max(index.depth),
            Kind::Slice(value, parts) => value.depth.max(deepest(parts.iter().flatten())),
            Kind::Call(value, arguments) => value.depth.max(deepest(arguments.nodes())),
            Kind::Filter(value, call) | Kind::Test(value, call) => {
                value.depth.max(deepest(call.arguments.nodes()))
            }
            Kind::Binary(_, a, b) | Kind::And(a, b) | Kind::Or(a, b) => a.depth.max(b.depth),
            Kind::Compare(first, rest) => first.depth.max(deepest(rest.iter().map(|(_, node)| node))),
            Kind::Choice(both, no) => deepest(both.iter()).max(no.as_ref().map_or(0, |node| node.depth)),
        }
    }
}
