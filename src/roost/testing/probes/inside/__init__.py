"""Try to get out of a sandbox, or to learn what is outside.

Each probe either fails with an error from the system or finds nothing (`blocked`), or says what it got
(`open`). Some findings are harmless by design and say why (`info`). Nothing is done that would hurt a
machine on which a probe succeeds: what would act is called with arguments that cannot be meant, and the
error tells whether the call was refused or only misunderstood.
"""
