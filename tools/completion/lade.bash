# SPDX-License-Identifier: Apache-2.0
# Completion of the command `lade` in bash. Subcommands and options are those that `lade --help` and `lade COMMAND --help` list.
# Installed as share/bash-completion/completions/lade; or source it. Needs bash alone.

# Lines "NAME ..." below "commands:".
_lade_commands() { "$1" --help 2>/dev/null | sed -n '/^commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p'; }

# An option is the first word of its line, maybe after a short one: "  -i, --input=FILE  ...".
_lade_options() { "$1" "$2" --help 2>/dev/null | sed -n 's/^  *\(-., *\)\{0,1\}\(--[a-z][a-z-]*\).*/\2/p'; }

_lade() {
  local lade=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]-}
  COMPREPLY=()
  # "--runtime=c" comes as three words where "=" breaks words.
  if [ "$word" = = ]; then
    word=
  elif [ "$before" = = ]; then
    before=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_lade_commands "$lade") help --help --version" -- "$word")
    return
  fi
  case $command in
  help)
    [ "$COMP_CWORD" -ne 2 ] || mapfile -t COMPREPLY < <(compgen -W "$(_lade_commands "$lade")" -- "$word")
    return
    ;;
  esac
  case $before in
  --runtime) mapfile -t COMPREPLY < <(compgen -W "cuda cpu sim" -- "$word") ;;
  --storage) mapfile -t COMPREPLY < <(compgen -W "auto pread uring cufile" -- "$word") ;;
  --history) mapfile -t COMPREPLY < <(compgen -W "on off" -- "$word") ;;
  --to | --on) mapfile -t COMPREPLY < <(compgen -W "0 all" -- "$word") ;;
  --conf | --compare | --max-shard-size | --repeat | --entries | --publisher | --wait) ;;
  *)
    case $word in
    -*) mapfile -t COMPREPLY < <(compgen -W "$(_lade_options "$lade" "$command")" -- "$word") ;;
    *)
      compopt -o filenames 2>/dev/null # a test has no command line that is being completed
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      ;;
    esac
    ;;
  esac
}

complete -F _lade lade
