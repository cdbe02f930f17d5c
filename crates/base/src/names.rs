//! Closed sets of names: an enum whose variants have one spelling in run files, events and checkpoints.

/// Declares a closed set of names.
///
/// `names! { /// Doc. Name { /// Doc. Variant = "text", } }` makes a `Copy` enum that serde reads and writes as `text`,
/// with `ALL`, `name()` and `Display`. The calling crate depends on `serde`. Attributes (further derives) pass through.
#[macro_export]
macro_rules! names {
    ($(#[$attr:meta])* $name:ident { $($(#[$variant_attr:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$attr])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$variant_attr])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// All variants, in the order in which messages list them.
            pub const ALL: [$name; [$($text),+].len()] = [$($name::$variant),+];

            /// Returns the name in run files.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
