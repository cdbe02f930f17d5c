//! Working memory of a task, on its stack.

/// Declares arrays of f32 that nothing fills before they are used, and the pointers to them.
macro_rules! scratch {
    ($(#[$about:meta])* $Scratch:ident, $Work:ident { $($(#[$doc:meta])* $name:ident: $elements:expr,)+ }) => {
        $(#[$about])*
        #[repr(align(64))]
        struct $Scratch {
            $($(#[$doc])* $name: [std::mem::MaybeUninit<f32>; $elements],)+
        }

        /// Pointers to the arrays of the working memory.
        #[derive(Clone, Copy)]
        struct $Work {
            $($name: *mut f32,)+
        }

        impl $Work {
            #[inline(always)]
            fn new(scratch: &mut std::mem::MaybeUninit<$Scratch>) -> $Work {
                // SAFETY: its fields are arrays of `MaybeUninit`.
                let scratch = unsafe { scratch.assume_init_mut() };
                $Work { $($name: scratch.$name.as_mut_ptr().cast(),)+ }
            }
        }
    };
}
