# SPDX-License-Identifier: Apache-2.0
# A text as one string of C, without trigraphs.
s/[\\"]/\\&/g
s/??/?\\?/g
s/.*/    "&\\n"/
