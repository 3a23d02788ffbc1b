//! Turns a table of documented names into the members of a family of ops: the enum, the list of all, and what people call them.

/// Writes an enum of members without attributes from rows of a sentence, a variant and its name.
macro_rules! kinds {
    ($(#[doc = $about:literal])+ $kind:ident { $( $(#[doc = $doc:literal])+ $member:ident => $name:literal, )+ }) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $kind {
            $( $(#[doc = $doc])+ $member, )+
        }

        impl $kind {
            /// All of them.
            pub const ALL: [$kind; [$( $name ),+].len()] = [$( $kind::$member ),+];

            /// The name people see.
            pub fn label(self) -> &'static str {
                match self {
                    $( $kind::$member => $name, )+
                }
            }
        }
    };
}
pub(super) use kinds;
